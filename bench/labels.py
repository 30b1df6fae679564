"""Where labels of curves lie that would cover each other."""


def spread(wanted, least, low, high):
    """Heights at least `least` apart, in the order of the wanted ones: those that are too close share the place around their mean."""
    groups = []
    for height in sorted(wanted):
        groups.append([height])
        while len(groups) > 1 and bottom(groups[-1], least, low, high) < top(groups[-2], least, low, high) + least:
            last = groups.pop()
            groups[-1] += last
    places = [bottom(group, least, low, high) + least * at for group in groups for at in range(len(group))]
    order = sorted(range(len(wanted)), key=lambda at: wanted[at])
    return [place for _, place in sorted(zip(order, places))]


def bottom(group, least, low, high):
    """Where the lowest label of a group lies."""
    extent = least * (len(group) - 1)
    return max(low, min(sum(group) / len(group) - extent / 2, high - extent))


def top(group, least, low, high):
    """Where the highest label of a group lies."""
    return bottom(group, least, low, high) + least * (len(group) - 1)
