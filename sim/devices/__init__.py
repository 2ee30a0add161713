"""How fast simulated devices compute and send, and when they are on."""
