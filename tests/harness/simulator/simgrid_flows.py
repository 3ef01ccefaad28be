"""Messages on shared links, by SimGrid: one platform a process, so this file is run as a program.

Reads a JSON object from standard input (``rates`` of links, ``flows``: when each begins, the links
of its way, its bytes) and writes when each has arrived.
"""

import json
import sys

from simgrid import Comm, Engine, Host, LinkInRoute, this_actor

SETTINGS = (
    "network/model:CM02", "network/crosstraffic:0", "network/TCP-gamma:0",
    "precision/work-amount:1e-5", "precision/timing:1e-12", "cpu/optim:Full",
)  # fmt: skip

SCALE = 1e9
"""Whole bytes are sent: so many times as many, at as many times the rate: rounding is nothing."""


class Flow:
    """Sends its bytes from one host of its own to another."""

    def __init__(self, number, begins_s, size, arrived_s):
        self.number, self.begins_s, self.size, self.arrived_s = number, begins_s, size, arrived_s

    def __call__(self):
        this_actor.sleep_until(self.begins_s)
        ends = (Host.by_name(f"{end}{self.number}") for end in ("from", "to"))
        Comm.sendto(*ends, round(SCALE * self.size))
        self.arrived_s[self.number] = Engine.clock


def main():
    asked = json.load(sys.stdin)
    engine = Engine([sys.argv[0], "--log=root.thres:critical", *(f"--cfg={s}" for s in SETTINGS)])
    zone, arrived_s = engine.netzone_root, {}
    rates = [SCALE * rate for rate in asked["rates"]]
    links = [zone.add_link(f"link{number}", rate).seal() for number, rate in enumerate(rates)]
    for number, (begins_s, way, size) in enumerate(asked["flows"]):
        source, target = (zone.add_host(f"{end}{number}", 1e9) for end in ("from", "to"))
        source.seal()
        target.seal()
        zone.add_route(source, target, [LinkInRoute(links[link]) for link in way], False)
        source.add_actor(f"flow{number}", Flow(number, begins_s, size, arrived_s))
    zone.seal()
    engine.run()
    json.dump([arrived_s[number] for number in range(len(asked["flows"]))], sys.stdout)


if __name__ == "__main__":
    main()
