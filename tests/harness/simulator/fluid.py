"""Messages on max-min fair links in exact fractions, from change to change."""

from fractions import Fraction


def fair_rates(ways):
    """Rates by filling all alike until a link is full, then the others, and so on."""
    rates, room = {}, {link: rate for way in ways.values() for link, rate in way.items()}
    while len(rates) < len(ways):
        rest = {message: way for message, way in ways.items() if message not in rates}
        load = {link: sum(link in way for way in rest.values()) for link in room}
        part = {link: room[link] / count for link, count in load.items() if count}
        share = min(part.values())
        full = {link for link, own in part.items() if own == share}
        for message in [message for message, way in rest.items() if full & way.keys()]:
            rates[message] = share
            for link in ways[message]:
                room[link] -= share
    return rates


def departures_s(sent_s, ways, sizes):
    """When the last byte of each message leaves.

    Args:
        sent_s: when each is sent.
        ways: the links of each, with their rates.
        sizes: bytes of each.
    """
    ways = [{link: Fraction(rate) for link, rate in way.items()} for way in ways]
    left, ends_s, now = dict(enumerate(map(Fraction, sizes))), {}, Fraction(0)
    while left:
        rates = fair_rates({message: ways[message] for message in left if sent_s[message] <= now})
        later = [Fraction(sent_s[message]) for message in left if sent_s[message] > now]
        until = min(later + [now + left[message] / rate for message, rate in rates.items()])
        for message, rate in rates.items():
            left[message] -= rate * (until - now)
            if left[message] == 0:
                ends_s[message] = until
                del left[message]
        now = until
    return [ends_s[message] for message in range(len(sizes))]
