//! Where the numbers of edges stand, so that none lies upon another one or upon a node.

use herringbone::svg::Point;

/// The radius of the disk behind a number.
pub(super) const DISK: f64 = 6.0;
/// How far disks are from each other and from nodes, at least.
const GAP: f64 = 0.5;
/// How far the boxes of two nodes are from each other, at least, so that there is room for the number of an edge between them.
pub(super) const ROOM: f64 = 2.0 * (DISK + 4.0 * GAP);
/// Where on its edge a number stands if it can: nearer to the receiver. The other places are as near to this as possible.
const USUAL: f64 = 0.7;
/// The part of an edge between two places that are tried.
const STEP: f64 = 0.01;

/// A line between the middles of two nodes, from the sender to the receiver.
#[derive(Clone, Copy, Debug)]
pub(super) struct EdgeLine {
    pub(super) from: Point,
    pub(super) to: Point,
}

/// What a node covers: a box around its middle, or without width and height a disk of this radius.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeBox {
    pub(super) middle: Point,
    pub(super) wide: f64,
    pub(super) high: f64,
    pub(super) radius: f64,
}

impl EdgeLine {
    /// Where a number can stand on it: the usual place first, then others, farther and farther from it.
    fn places(&self) -> impl Iterator<Item = Point> {
        let both = (1..(1.0 / STEP) as u32).flat_map(|step| {
            let away = f64::from(step) * STEP;
            [USUAL - away, USUAL + away]
        });
        let ((x, y), (to_x, to_y)) = (self.from, self.to);
        let parts = std::iter::once(USUAL).chain(both).filter(|part| (0.0..=1.0).contains(part));
        parts.map(move |part| (x + part * (to_x - x), y + part * (to_y - y)))
    }
}

impl NodeBox {
    /// How far a place is from what is covered; not above 0 within it.
    fn distance(&self, (x, y): Point) -> f64 {
        let beyond = |middle: f64, side: f64, place: f64| ((place - middle).abs() - side / 2.0).max(0.0);
        beyond(self.middle.0, self.wide, x).hypot(beyond(self.middle.1, self.high, y)) - self.radius
    }
}

/// The middles of the edges' numbers, in the order of the edges. Each is on its edge, free of nodes and of other numbers if there is
/// room, and as far from them as can be if there is none.
///
/// The edge with the fewest free places chooses first, and takes the place that leaves the others most. These are the usual heuristics for
/// constraint problems (Haralick and Elliott, "Increasing tree search efficiency", 1980), without a step back.
pub(super) fn spread(edges: &[EdgeLine], nodes: &[NodeBox]) -> Vec<Point> {
    let is_free_of_nodes = |place: &Point| nodes.iter().all(|node| node.distance(*place) >= DISK + GAP);
    let mut free: Vec<Vec<Point>> =
        edges.iter().map(|edge| edge.places().filter(is_free_of_nodes).collect()).collect();
    let mut placed: Vec<Option<Point>> = vec![None; edges.len()];
    while let Some(edge) =
        (0..edges.len()).filter(|edge| placed[*edge].is_none()).min_by_key(|edge| free[*edge].len())
    {
        let own = std::mem::take(&mut free[edge]);
        let others = |place: Point| {
            let taken = free.iter().filter(|places| !places.is_empty()).map(|places| {
                places.iter().filter(|other| collide(**other, place)).count() as f64 / places.len() as f64
            });
            // In tenths of all places of an edge: a better place has to be worth it.
            (10.0 * taken.sum::<f64>()).round()
        };
        let cheapest = own.into_iter().map(|place| (others(place), place)).reduce(|best, next| {
            // Among equal ones the first, which is nearest to the usual place.
            if next.0 < best.0 { next } else { best }
        });
        let place = cheapest.map_or_else(|| farthest(&edges[edge], nodes, &placed), |(_, place)| place);
        placed[edge] = Some(place);
        free.iter_mut().for_each(|places| places.retain(|other| !collide(*other, place)));
    }
    placed.into_iter().flatten().collect()
}

/// The place of an edge that is farthest from nodes and other numbers.
fn farthest(edge: &EdgeLine, nodes: &[NodeBox], placed: &[Option<Point>]) -> Point {
    let room = |place: Point| {
        let from_nodes = nodes.iter().map(|node| node.distance(place) - DISK);
        let from_others = placed.iter().flatten().map(|other| distance(*other, place) - 2.0 * DISK);
        from_nodes.chain(from_others).fold(f64::INFINITY, f64::min)
    };
    edge.places().max_by(|one, other| room(*one).total_cmp(&room(*other))).unwrap_or(edge.to)
}

/// Whether two numbers would be too near to each other.
fn collide(one: Point, other: Point) -> bool {
    let (x, y, least) = (one.0 - other.0, one.1 - other.1, 2.0 * DISK + GAP);
    x * x + y * y < least * least
}

fn distance(one: Point, other: Point) -> f64 {
    (one.0 - other.0).hypot(one.1 - other.1)
}

#[cfg(test)]
pub(super) fn least_room(places: &[Point], nodes: &[NodeBox]) -> f64 {
    let from_nodes = places.iter().flat_map(|place| nodes.iter().map(|node| node.distance(*place) - DISK));
    let pairs =
        places.iter().enumerate().flat_map(|(at, one)| places[..at].iter().map(|other| (*one, *other)));
    from_nodes
        .chain(pairs.map(|(one, other)| distance(one, other) - 2.0 * DISK))
        .fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_edges_that_cross_stand_apart() {
        let lines =
            [((0.0, 0.0), (100.0, 100.0)), ((0.0, 100.0), (100.0, 0.0)), ((0.0, 70.0), (100.0, 70.0))];
        let edges = lines.map(|(from, to)| EdgeLine { from, to });
        let nodes = [NodeBox { middle: (100.0, 100.0), wide: 80.0, high: 18.0, radius: 0.0 }];
        let places = spread(&edges, &nodes);
        assert!(least_room(&places, &nodes) > 0.0, "{places:?}");
        let alone = spread(&edges[..1], &[]);
        assert_eq!(alone, [(70.0, 70.0)]);
        // No room at all: they are as far apart as the edge is long.
        let crowded = spread(&[EdgeLine { from: (0.0, 0.0), to: (10.0, 0.0) }; 2], &[]);
        assert!(least_room(&crowded, &[]) > -6.0, "{crowded:?}");
    }
}
