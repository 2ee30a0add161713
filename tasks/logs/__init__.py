"""Imports what robots record, such as ROS bags and LeRobot data sets, into the folders that tasks read."""
