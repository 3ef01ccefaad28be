"""Messages over a network of links that nothing but their own times send off."""

import numpy as np

from harness.simulator.network import COUNT, depart, new_traffic, next_departure_s, reserve, start
from tests.invariants import check_messages


def transfer(wiring, sent_s, source, target, size_bytes) -> np.ndarray:
    """[M] arrivals; of messages sent at one instant, the one listed first goes first."""
    traffic, arrived_s, now_s = new_traffic(wiring, len(sent_s)), np.zeros(len(sent_s)), 0.0

    def let_depart(now_s: float, end_s: float) -> float:
        while traffic.counts[COUNT] > 0:
            departs_s = next_departure_s(traffic, now_s)
            if departs_s > end_s:
                break
            now_s = departs_s
            slot, latency_s = depart(traffic)
            arrived_s[slot] = departs_s + latency_s
        return now_s

    for who in np.argsort(sent_s, kind="stable"):
        message = (int(source[who]), int(target[who]), float(size_bytes[who]))
        if wiring.fair:
            let_depart(now_s, sent_s[who])
            now_s = float(sent_s[who])
            start(traffic, who, *message, now_s)
        else:
            *_, arrived_s[who] = reserve(traffic, who, *message, float(sent_s[who]))
    if wiring.fair:
        let_depart(now_s, np.inf)
        columns = (np.asarray(x, np.float64) for x in (size_bytes, sent_s, arrived_s))
        check_messages(wiring, source, target, *columns)
    return arrived_s
