//! Slurm's lists of hosts, such as `node[01-03,7],login`: as far as their first host and their length.

/// The first host of a list; `None` if it is not one.
pub(super) fn first(list: &str) -> Option<String> {
    let end = list
        .char_indices()
        .scan(0_u32, |depth, (at, letter)| {
            match letter {
                '[' => *depth += 1,
                ']' => *depth = depth.checked_sub(1)?,
                _ => {}
            }
            Some((*depth, at, letter))
        })
        .find(|(depth, _, letter)| *depth == 0 && *letter == ',')
        .map_or(list.len(), |(_, at, _)| at);
    expand(list.get(..end)?.trim())
}

/// The first host of one entry: each pair of brackets counts with its first number.
fn expand(entry: &str) -> Option<String> {
    let Some((before, rest)) = entry.split_once('[') else {
        return (!entry.is_empty() && !entry.contains(']')).then(|| entry.to_owned());
    };
    let (ranges, after) = rest.split_once(']')?;
    let number = ranges.split([',', '-']).next()?;
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let after = if after.is_empty() { String::new() } else { expand(after)? };
    Some(format!("{before}{number}{after}"))
}

/// How many tasks a node has, of a list such as `2(x3),1`: two on each of the first three nodes, one on the fourth.
pub(super) fn tasks(list: &str, node: u32) -> Option<u32> {
    let mut before = 0;
    for entry in list.split(',') {
        let (tasks, times) = match entry.trim().split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse::<u32>().ok()?),
            None => (entry.trim(), 1),
        };
        before += times;
        if node < before {
            return tasks.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_host_is_that_of_scontrol() {
        for (list, host) in [
            ("node[01-03,7]", "node01"),
            ("node[7,01-03],a", "node7"),
            ("login,node[1-2]", "login"),
            ("a[2-3]b[08-10]c,x", "a2b08c"),
            ("vm", "vm"),
            ("gpu-1.cluster", "gpu-1.cluster"),
        ] {
            assert_eq!(first(list).as_deref(), Some(host), "{list}");
        }
        for wrong in ["", "node[", "node]", "node[a-b]", "node[]", ",a", "a[1-2"] {
            assert_eq!(first(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn tasks_are_those_of_the_node() {
        for (list, counts) in [("2", vec![2]), ("2(x3),1", vec![2, 2, 2, 1]), ("4,2(x2)", vec![4, 2, 2])] {
            for (node, count) in (0..).zip(&counts) {
                assert_eq!(tasks(list, node), Some(*count), "{list}");
            }
            assert_eq!(tasks(list, counts.len() as u32), None);
        }
        assert_eq!((tasks("", 0), tasks("2(y3)", 0), tasks("2(x3", 0)), (None, None, None));
    }
}
