"""What an audit attacks in a house (:mod:`fedapps.tasks.privacy`): its instructions and the agent that follows them."""
