"""What an audit attacks in a house (:mod:`tasks.privacy`): its instructions, and the agent that follows them."""
