use herringbone::{ReduceOp, Config, Rendezvous};
#[test]
fn local_sums() {
    for n in 1..=8u32 {
        for count in [0usize, 1, 3, 100, 5000, 300_000] {
            let ranks = herringbone::local(n).unwrap();
            std::thread::scope(|scope| {
                for comm in ranks {
                    scope.spawn(move || {
                        for _ in 0..3 {
                        let mut values: Vec<f32> = (0..count).map(|i| (comm.rank() + 1) as f32 * (i % 17) as f32).collect();
                        comm.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                        let total = (n * (n + 1) / 2) as f32;
                        assert!(values.iter().enumerate().all(|(i, v)| *v == total * (i % 17) as f32));
                        }
                    });
                }
            });
        }
    }
}
