"""The task "vln": follow instructions through houses, one house to a node (FedVLN, Zhou and Wang, ECCV 2022)."""
