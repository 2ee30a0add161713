"""A robot's control loop that takes over each new model of its node between two control steps.

    python robot_loop.py STATE-DIR/models/RUN/METHOD/NODE [--rate 50] [--models N]

It needs PyTorch and no Flower. The robot is a point mass of the task lqr; `Robot` stands for your sensors and motors.
"""

import argparse
import time

import numpy as np

import fedapps


class Robot:
    """A point mass on a line, 10 m from where it should be."""

    def __init__(self):
        self.state = np.array([10.0, 0.0])  # position and velocity

    def sense(self):
        return self.state

    def act(self, control):
        position, velocity = self.state
        self.state = np.array([position + velocity, velocity + control[0]])


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Control a robot with the newest model of its node.")
    parser.add_argument("folder", help="where the node keeps its models: STATE-DIR/models/RUN/METHOD/NODE")
    parser.add_argument("--rate", type=float, default=50.0, help="control steps per second")
    parser.add_argument("--models", type=int, default=0, help="end after this number of models; 0: never")
    given = parser.parse_args(arguments)

    robot, used, longest = Robot(), 1, 0.0
    with fedapps.watch(given.folder) as models:
        model = next(models)  # waits for the first
        print(f"model of round {model.origin.round}: gain {model.gain.round(3).tolist()}", flush=True)
        while used != given.models:
            begun = time.monotonic()
            if newer := models.newest():  # never waits: a thread reads the models
                model, used = newer, used + 1
                print(f"model of round {model.origin.round}: gain {model.gain.round(3).tolist()}", flush=True)
            robot.act(model.control(robot.sense()))
            took = time.monotonic() - begun
            longest = max(longest, took)
            time.sleep(max(0.0, 1 / given.rate - took))
    print(f"the longest of all control steps took {1000 * longest:.1f} ms")


if __name__ == "__main__":
    main()
