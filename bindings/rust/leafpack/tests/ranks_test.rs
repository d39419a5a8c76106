//! Collectives on 1, 2 and 4 ranks. Every rank runs the same tests in the same order; each has a
//! group of its own.

use leafpack::*;

fn group() -> Group {
    Group::from_environment(&GroupOptions::default()).unwrap()
}

/// Element j of leaf i on rank r is 100 r + 10 i + j.
fn value(rank: i32, leaf: i32, element: usize) -> f64 {
    f64::from(100 * rank + 10 * leaf) + element as f64
}

fn tree_of(rank: i32) -> TensorDict<'static> {
    let mut tree = TensorDict::new();
    let values = |leaf, len: usize| (0..len).map(|element| value(rank, leaf, element)).collect::<Vec<f64>>();
    tree.set("a", Tensor::from_vec(values(0, 3), &[3]).unwrap()).unwrap();
    tree.set(key!["b", 0], Tensor::from_vec(values(1, 4), &[2, 2]).unwrap()).unwrap();
    tree.set(["b", "empty"], Tensor::from_vec(values(2, 0), &[0]).unwrap()).unwrap();
    tree
}

/// The tree has what `value` says for each leaf and element.
#[track_caller]
fn check(tree: &TensorDict<'_>, value: impl Fn(i32, usize) -> f64) {
    for (leaf, key) in [key!["a"], key!["b", 0], key!["b", "empty"]].iter().enumerate() {
        for (element, found) in tree.slice::<f64>(key).unwrap().iter().enumerate() {
            assert_eq!(*found, value(leaf as i32, element), "{key:?} [{element}]");
        }
    }
}

fn sum(size: i32, leaf: i32, element: usize) -> f64 {
    (0..size).map(|rank| value(rank, leaf, element)).sum()
}

#[test]
fn all_reduce_of_every_op() {
    let group = group();
    let (rank, size) = (group.rank(), group.size());
    type Expected = fn(i32, i32, usize) -> f64;
    let cases: [(ReduceOp, Expected); 5] = [
        (ReduceOp::Sum, sum),
        (ReduceOp::Avg, |size, leaf, element| sum(size, leaf, element) / f64::from(size)),
        (ReduceOp::Min, |_, leaf, element| value(0, leaf, element)),
        (ReduceOp::Max, |size, leaf, element| value(size - 1, leaf, element)),
        (ReduceOp::PremulSum(0.5), |size, leaf, element| sum(size, leaf, element) / 2.0),
    ];
    for (op, expected) in cases {
        for bucketing in [Bucketing::Auto, Bucketing::PerLeaf, Bucketing::MaxBytes(16)] {
            let mut tree = tree_of(rank);
            let options = AllReduceOptions { op, bucketing, ..Default::default() };
            all_reduce(&mut tree, &group, &options).unwrap();
            check(&tree, |leaf, element| expected(size, leaf, element));
        }
    }
}

#[test]
fn asynchronous_all_reduces_of_borrowed_trees() {
    let group = group();
    let (rank, size) = (group.rank(), group.size());
    let mut first = tree_of(rank);
    let mut second = tree_of(rank + 1);
    let works = [
        all_reduce_async(&mut first, &group, &AllReduceOptions::default()).unwrap(),
        reduce_async(&mut second, 0, &group, &AllReduceOptions::default()).unwrap(),
    ];
    for work in works {
        while !work.wait_for(std::time::Duration::from_millis(10)) {}
        assert!(work.is_done());
        work.wait().unwrap();
    }
    check(&first, |leaf, element| sum(size, leaf, element));
    check(&second, |leaf, element| {
        if rank == 0 {
            sum(size + 1, leaf, element) - value(0, leaf, element)
        } else {
            value(rank + 1, leaf, element)
        }
    });
}

#[test]
fn broadcasts_and_gathers() {
    let group = group();
    let (rank, size) = (group.rank(), group.size());
    let root = size - 1;
    let options = CallOptions::default();

    let mut tree = tree_of(rank);
    broadcast(&mut tree, root, &group, &options).unwrap();
    check(&tree, |leaf, element| value(root, leaf, element));

    let tree = if rank == root {
        let mut tree = tree_of(rank);
        broadcast(&mut tree, root, &group, &options).unwrap();
        tree
    } else {
        broadcast_new(root, &group, &options).unwrap()
    };
    check(&tree, |leaf, element| value(root, leaf, element));

    let own = tree_of(rank);
    let later = all_gather_async(&own, &group, &options).unwrap();
    check(&own, |leaf, element| value(rank, leaf, element)); // may be read meanwhile
    for trees in [later.wait().unwrap(), all_gather(&own, &group, &options).unwrap()] {
        assert_eq!(trees.len(), size as usize);
        for (from, tree) in trees.iter().enumerate() {
            check(tree, |leaf, element| value(from as i32, leaf, element));
        }
    }

    let joined = all_gather_joined(&own, Joining::Stack, &group, &options).unwrap();
    assert_eq!(joined.get("a").unwrap().sizes(), [i64::from(size), 3]);

    let gathered = gather(&own, root, &group, &options).unwrap();
    assert_eq!(gathered.len(), if rank == root { size as usize } else { 0 });

    let parts: Vec<_> = if rank == root { (0..size).map(tree_of).collect() } else { Vec::new() };
    let part = scatter(&parts, root, &group, &options).unwrap();
    check(&part, |leaf, element| value(rank, leaf, element));

    let parts: Vec<_> = (0..size).map(|to| tree_of(10 * rank + to)).collect();
    for (from, tree) in all_to_all(&parts, &group, &options).unwrap().iter().enumerate() {
        check(tree, |leaf, element| value(10 * from as i32 + rank, leaf, element));
    }

    let mut parts: Vec<_> = (0..size).map(|to| tree_of(rank + 1000 * to)).collect();
    reduce_scatter(&mut parts, &group, &AllReduceOptions::default()).unwrap();
    check(&parts[rank as usize], |leaf, element| {
        (0..size).map(|from| value(from + 1000 * rank, leaf, element)).sum()
    });

    barrier(&group, &options).unwrap();
    assert_eq!(broadcast_bytes(&[rank as u8, 7], root, &group, &options).unwrap(), [root as u8, 7]);
    let all = all_gather_bytes(&vec![rank as u8; rank as usize], &group, &options).unwrap();
    assert!(all.iter().enumerate().all(|(from, bytes)| *bytes == vec![from as u8; from]));
}

#[test]
fn transfers_around_a_ring() {
    let group = group();
    let (rank, size) = (group.rank(), group.size());
    if size == 1 {
        return;
    }
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let tree = tree_of(rank);
    let options = TransferOptions { tag: 3, ..Default::default() };

    let sending = isend(&tree, next, &group, &options).unwrap();
    let received = recv(Some(previous), &group, &options).unwrap();
    assert_eq!(received.source, previous);
    check(&received.value, |leaf, element| value(previous, leaf, element));
    sending.wait().unwrap();

    let mut into = tree_of(rank);
    let receiving = irecv_into(&mut into, None, &group, &options).unwrap();
    send(&tree, next, &group, &options).unwrap();
    receiving.wait().unwrap();
    check(&into, |leaf, element| value(previous, leaf, element));

    let receiving = irecv(Some(previous), &group, &options).unwrap();
    send(&tree, next, &group, &options).unwrap();
    assert_eq!(receiving.wait().unwrap().source, previous);
}

#[test]
fn groups_are_split_and_ranks_translated() {
    let group = group();
    let half = group.split((group.rank() % 2 == 0).then(|| 1), -group.rank()).unwrap();
    assert_eq!(half.is_some(), group.rank() % 2 == 0);
    if let Some(half) = half {
        assert_eq!(half.size(), (group.size() + 1) / 2);
        assert_eq!(half.to_global(half.rank()).unwrap(), group.global_rank());
        barrier(&half, &CallOptions::default()).unwrap();
    }
    let first = [0];
    assert_eq!(group.new_group(&first, Some("first")).is_ok(), group.rank() == 0);
    let error = group.to_global(group.size()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::OutOfRange);
}

#[test]
fn ranks_that_disagree_get_one_error_each_and_go_on() {
    let group = group();
    let (rank, size) = (group.rank(), group.size());
    if size == 1 {
        return;
    }
    let mut tree = tree_of(rank);
    if rank == size - 1 {
        tree.set("a", Tensor::from_vec(vec![0i32; 3], &[3]).unwrap()).unwrap();
    }
    let error = all_reduce(&mut tree, &group, &AllReduceOptions::default()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::FailedPrecondition);
    assert_eq!(error.kind(), ErrorKind::LayoutMismatch);
    assert_eq!(error.path(), "a");
    assert!(error.ranks().contains(&(size - 1)), "{error:?}");
    assert!(error.tree_unchanged());

    // What one rank refuses.
    let mut tree = tree_of(rank);
    if rank == 0 {
        tree.set("a", Tensor::undefined().unwrap()).unwrap();
    }
    let options = AllReduceOptions { op: ReduceOp::Band, ..Default::default() };
    let error = all_reduce(&mut tree, &group, &options).unwrap_err();
    assert!(!error.message().is_empty());

    let mut tree = tree_of(rank);
    all_reduce(&mut tree, &group, &AllReduceOptions::default()).unwrap();
    check(&tree, |leaf, element| sum(size, leaf, element));
}

#[test]
fn a_call_that_a_rank_misses_ends_by_its_deadline_or_by_the_interrupt() {
    let group = group();
    if group.size() == 1 {
        return;
    }
    let meeting = self::group();
    barrier(&group, &CallOptions::default()).unwrap();
    if group.rank() == 0 {
        let timeout = Some(std::time::Duration::from_millis(200));
        let error = barrier(&group, &CallOptions { timeout, ..Default::default() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Deadline, "{error}");
        assert!(error.ranks().contains(&1), "{error:?}");
        let error = barrier(&group, &CallOptions { interrupt: Some(&|| true), ..Default::default() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
    }
    // Until then the others stay in the group.
    barrier(&meeting, &CallOptions::default()).unwrap();
}

#[test]
fn the_memory_that_a_tree_borrows_is_reduced_where_it_lies() {
    let group = group();
    let mut values = vec![group.rank() as f32; 1000];
    {
        let mut tree = TensorDict::new();
        tree.set("values", Tensor::from_slice(&mut values, &[10, 100]).unwrap()).unwrap();
        all_reduce(&mut tree, &group, &AllReduceOptions::default()).unwrap();
    }
    let expected = (0..group.size()).sum::<i32>() as f32;
    assert!(values.iter().all(|value| *value == expected));
}

#[test]
fn only_chosen_leaves_take_part() {
    let group = group();
    let mut tree = tree_of(group.rank());
    let chosen = |path: &str| path.starts_with('b');
    let options = AllReduceOptions { leaves: LeafFilter::Chosen(&chosen), ..Default::default() };
    all_reduce(&mut tree, &group, &options).unwrap();
    check(&tree, |leaf, element| {
        if leaf == 0 {
            value(group.rank(), leaf, element)
        } else {
            sum(group.size(), leaf, element)
        }
    });
}
