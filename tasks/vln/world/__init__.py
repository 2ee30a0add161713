"""Made-up houses with objects and instructions, in the files of Room-to-Room, Matterport3D and REVERIE."""
