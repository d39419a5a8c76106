//! Collectives on 1, 2 and 4 ranks. Every rank runs the same tests in the same order; each has a
//! group of its own.

use std::cell::Cell;
use std::time::Duration;

use leafpack::*;

/// What goes wrong between ranks.
#[path = "ranks/faults.rs"]
mod faults;

/// As std::mem::forget, in a place where a leak checker finds it.
fn forget<T>(value: T) {
    static KEPT: std::sync::Mutex<Vec<usize>> = std::sync::Mutex::new(Vec::new());
    KEPT.lock().unwrap().push(Box::into_raw(Box::new(value)) as usize);
}

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

    let gathered = gather(&own, root, &group, &options).unwrap();
    assert_eq!(gathered.len(), if rank == root { size as usize } else { 0 });
    let gathered = gather_async(&own, root, &group, &options).unwrap().wait().unwrap();
    assert_eq!(gathered.len(), if rank == root { size as usize } else { 0 });
    for (from, tree) in gathered.iter().enumerate() {
        check(tree, |leaf, element| value(from as i32, leaf, element));
    }

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
}

/// Leaf "a" of the trees of all ranks, one after the other.
fn joined_a(size: i32) -> Vec<f64> {
    (0..size).flat_map(|rank| (0..3).map(move |element| value(rank, 0, element))).collect()
}

#[test]
fn trees_are_joined_into_one() {
    let group = group();
    let (rank, size) = (group.rank(), group.size());
    let root = size - 1;
    let options = CallOptions::default();
    let own = tree_of(rank);
    let stacked = [i64::from(size), 3];
    let concatenated = [3 * i64::from(size)];

    for (joining, sizes) in [(Joining::Stack, &stacked[..]), (Joining::Concat, &concatenated[..])] {
        let work = all_gather_joined_async(&own, joining, &group, &options).unwrap();
        for joined in [work.wait().unwrap(), all_gather_joined(&own, joining, &group, &options).unwrap()] {
            assert_eq!(joined.get("a").unwrap().sizes(), sizes);
            assert_eq!(joined.slice::<f64>("a").unwrap(), joined_a(size));
        }
    }

    let mut into = all_gather_joined(&own, Joining::Stack, &group, &options).unwrap();
    for later in [false, true] {
        into.slice_mut::<f64>("a").unwrap().fill(-1.0);
        let memory = into.slice::<f64>("a").unwrap().as_ptr();
        if later {
            all_gather_joined_into_async(&own, Joining::Stack, &mut into, &group, &options).unwrap().wait().unwrap();
        } else {
            all_gather_joined_into(&own, Joining::Stack, &mut into, &group, &options).unwrap();
        }
        assert_eq!(into.slice::<f64>("a").unwrap(), joined_a(size));
        assert_eq!(into.slice::<f64>("a").unwrap().as_ptr(), memory);
    }

    let work = gather_and_stack_async(&own, root, &group, &options).unwrap();
    for stack in [work.wait().unwrap(), gather_and_stack(&own, root, &group, &options).unwrap()] {
        assert_eq!(stack.is_some(), rank == root);
        if let Some(stack) = stack {
            assert_eq!(stack.get("a").unwrap().sizes(), stacked);
            assert_eq!(stack.slice::<f64>("a").unwrap(), joined_a(size));
        }
    }
}

#[test]
fn trees_that_are_given_to_ranks_later() {
    let group = group();
    let (rank, size) = (group.rank(), group.size());
    let root = size - 1;
    let options = CallOptions::default();

    let tree = if rank == root {
        let mut tree = tree_of(rank);
        broadcast_async(&mut tree, root, &group, &options).unwrap().wait().unwrap();
        tree
    } else {
        broadcast_new_async(root, &group, &options).unwrap().wait().unwrap()
    };
    check(&tree, |leaf, element| value(root, leaf, element));

    let parts: Vec<_> = if rank == root { (0..size).map(tree_of).collect() } else { Vec::new() };
    let mut part = scatter_async(&parts, root, &group, &options).unwrap().wait().unwrap();
    check(&part, |leaf, element| value(rank, leaf, element));
    // The root's own is a copy.
    part.slice_mut::<f64>("a").unwrap().fill(-1.0);
    if rank == root {
        check(&parts[rank as usize], |leaf, element| value(rank, leaf, element));
    }
    for later in [false, true] {
        let mut into = tree_of(1000);
        if later {
            scatter_into_async(&mut into, &parts, root, &group, &options).unwrap().wait().unwrap();
        } else {
            scatter_into(&mut into, &parts, root, &group, &options).unwrap();
        }
        check(&into, |leaf, element| value(rank, leaf, element));
    }

    let parts: Vec<_> = (0..size).map(|to| tree_of(10 * rank + to)).collect();
    let work = all_to_all_async(&parts, &group, &options).unwrap();
    check(&parts[0], |leaf, element| value(10 * rank, leaf, element)); // may be read meanwhile
    for (from, tree) in work.wait().unwrap().iter().enumerate() {
        check(tree, |leaf, element| value(10 * from as i32 + rank, leaf, element));
    }

    let mut parts: Vec<_> = (0..size).map(|to| tree_of(rank + 1000 * to)).collect();
    reduce_scatter_async(&mut parts, &group, &AllReduceOptions::default()).unwrap().wait().unwrap();
    for (to, part) in parts.iter().enumerate() {
        check(part, |leaf, element| {
            if to == rank as usize {
                (0..size).map(|from| value(from + 1000 * rank, leaf, element)).sum()
            } else {
                value(rank + 1000 * to as i32, leaf, element)
            }
        });
    }
}

#[test]
fn a_forgotten_work_over_several_trees_is_waited_for_by_each() {
    let group = group();
    let (rank, size) = (group.rank(), group.size());
    let mut parts: Vec<_> = (0..size).map(|to| tree_of(rank + 1000 * to)).collect();
    forget(reduce_scatter_async(&mut parts, &group, &AllReduceOptions::default()).unwrap());
    check(&parts[rank as usize], |leaf, element| {
        (0..size).map(|from| value(from + 1000 * rank, leaf, element)).sum()
    });
    barrier(&group, &CallOptions::default()).unwrap();
}

#[test]
fn bytes_of_any_size() {
    let group = group();
    let (rank, size) = (group.rank(), group.size());
    let root = size - 1;
    let options = CallOptions::default();
    let bytes_of = |rank: i32| vec![rank as u8; 100 * rank as usize];

    assert_eq!(broadcast_bytes(&[rank as u8, 7], root, &group, &options).unwrap(), [root as u8, 7]);
    let all: Vec<_> = (0..size).map(bytes_of).collect();
    assert_eq!(all_gather_bytes(&bytes_of(rank), &group, &options).unwrap(), all);
    let gathered = gather_bytes(&bytes_of(rank), root, &group, &options).unwrap();
    assert_eq!(gathered, if rank == root { all.clone() } else { Vec::new() });

    let parts: Vec<&[u8]> = if rank == root { all.iter().map(Vec::as_slice).collect() } else { Vec::new() };
    assert_eq!(scatter_bytes(&parts, root, &group, &options).unwrap(), bytes_of(rank));

    // All at once, with copies of what is gone when they run.
    let [broadcast, scattered] = {
        let message = vec![rank as u8, 7];
        [
            broadcast_bytes_async(&message, root, &group, &options).unwrap(),
            scatter_bytes_async(&parts, root, &group, &options).unwrap(),
        ]
    };
    let [everywhere, on_root] = {
        let own = bytes_of(rank);
        [
            all_gather_bytes_async(&own, &group, &options).unwrap(),
            gather_bytes_async(&own, root, &group, &options).unwrap(),
        ]
    };
    assert_eq!(on_root.wait().unwrap(), if rank == root { all.clone() } else { Vec::new() });
    assert_eq!(broadcast.wait().unwrap(), [root as u8, 7]);
    assert_eq!(scattered.wait().unwrap(), bytes_of(rank));
    assert_eq!(everywhere.wait().unwrap(), all);

    if size == 1 {
        return;
    }
    let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
    let options = TransferOptions { tag: 5, ..Default::default() };
    let sending = {
        let data = bytes_of(rank);
        isend_bytes(&data, next, &group, &options).unwrap() // its own copy
    };
    let received = recv_bytes(Some(previous), &group, &options).unwrap();
    assert_eq!((received.value, received.source), (bytes_of(previous), previous));
    sending.wait().unwrap();

    let receiving = irecv_bytes(None, &group, &options).unwrap();
    send_bytes(&[rank as u8], next, &group, &options).unwrap();
    let received = receiving.wait().unwrap();
    assert_eq!((received.value, received.source), (vec![previous as u8], previous));
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
    assert_eq!(receiving.wait().unwrap().source, previous);
    check(&into, |leaf, element| value(previous, leaf, element));

    let receiving = irecv(Some(previous), &group, &options).unwrap();
    send(&tree, next, &group, &options).unwrap();
    assert_eq!(receiving.wait().unwrap().source, previous);
}

#[test]
fn groups_are_split_and_ranks_translated() {
    let group = group();
    let (rank, size) = (group.rank(), group.size());
    let defaults = GroupOptions::default();
    let half = group.split((group.rank() % 2 == 0).then(|| 1), -group.rank(), &defaults).unwrap();
    assert_eq!(half.is_some(), group.rank() % 2 == 0);
    if let Some(half) = half {
        assert_eq!(half.size(), (group.size() + 1) / 2);
        assert_eq!(half.to_global(half.rank()).unwrap(), group.global_rank());
        barrier(&half, &CallOptions::default()).unwrap();
    }
    // With options of their own, and given up while it waits for the others.
    let faster = GroupOptions { backend: Some("shm"), timeout: Some(Duration::from_secs(120)), ..defaults };
    let again = group.split(Some(0), 0, &faster).unwrap().unwrap();
    let mut tree = tree_of(rank);
    all_reduce(&mut tree, &again, &AllReduceOptions::default()).unwrap();
    check(&tree, |leaf, element| sum(size, leaf, element));
    assert!(group.split(Some(i32::MIN), 0, &defaults).is_err());
    let error = group.new_group(&[rank], None, &GroupOptions { backend: Some("pigeon"), ..defaults }).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
    let meeting = self::group();
    if size > 1 {
        if rank == 0 {
            let gives_up = GroupOptions { interrupt: Some(&|| true), ..defaults };
            let error = again.split(Some(0), 0, &gives_up).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
        }
        barrier(&meeting, &CallOptions::default()).unwrap();
    }

    let first = [0];
    assert_eq!(group.new_group(&first, Some("first"), &defaults).is_ok(), group.rank() == 0);
    let error = group.to_global(group.size()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::OutOfRange);
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

#[test]
fn leaves_are_chosen_by_the_components_of_their_paths() {
    let group = group();
    let mut tree = tree_of(group.rank());
    let chosen = |key: &NestedKey| key.components().last() == Some(&KeyComponent::Position(0));
    let options = AllReduceOptions { leaves: LeafFilter::ChosenByKey(&chosen), ..Default::default() };
    all_reduce(&mut tree, &group, &options).unwrap();
    check(&tree, |leaf, element| {
        if leaf == 1 {
            sum(group.size(), leaf, element)
        } else {
            value(group.rank(), leaf, element)
        }
    });
}

#[test]
fn calls_tell_where_their_time_went() {
    let group = group();
    let stats = Cell::new(CollectiveStats::default());
    let mut tree = tree_of(group.rank());
    tree.set_non_tensor("text", "compared").unwrap();
    for check in [CheckMode::Always, CheckMode::First, CheckMode::Off] {
        let call = CallOptions { stats: Some(&stats), check, ..Default::default() };
        stats.set(CollectiveStats::default());
        all_reduce(&mut tree, &group, &AllReduceOptions { call, ..Default::default() }).unwrap();
        let found = stats.get();
        assert_eq!((found.leaves, found.skipped, found.bytes), (3, 1, 7 * 8));
        assert!(found.total > 0.0 && found.total >= found.unpack, "{found:?}");

        stats.set(CollectiveStats::default());
        all_gather(&tree, &group, &call).unwrap();
        assert_eq!(stats.get().leaves, 3);

        // An asynchronous call has them in its work.
        stats.set(CollectiveStats::default());
        let work = all_reduce_async(&mut tree, &group, &AllReduceOptions { call, ..Default::default() }).unwrap();
        while !work.wait_for(Duration::from_secs(1)) {}
        assert_eq!(work.stats().unwrap().skipped, 1);
        work.wait().unwrap();
        assert_eq!(stats.get(), CollectiveStats::default());
    }
    // A call that fails leaves them alone.
    let call = CallOptions { stats: Some(&stats), name: Some("\0"), ..Default::default() };
    assert!(barrier(&group, &call).is_err());
    assert_eq!(stats.get(), CollectiveStats::default());
}

#[test]
fn ranks_meet_in_a_store() {
    let world = group();
    let (rank, size) = (world.rank(), world.size());
    let timeout = Some(Duration::from_secs(120));
    let served = if rank == 0 { Some(Store::tcp("localhost", 0, true, timeout).unwrap()) } else { None };
    let port = served.as_ref().map_or(0, |store| store.port().unwrap());
    let options = CallOptions::default();
    let port = broadcast_bytes(&port.to_le_bytes(), 0, &world, &options).unwrap();
    let port = u16::from_le_bytes([port[0], port[1]]);
    let store = served.unwrap_or_else(|| Store::tcp("localhost", port, false, timeout).unwrap());

    store.set(format!("rank {rank}"), [rank as u8]).unwrap();
    for other in 0..size {
        assert_eq!(store.get(format!("rank {other}")).unwrap(), [other as u8]);
    }

    let global: Vec<i32> = (0..size).rev().collect();
    let place = size - 1 - rank;
    let group = Group::from_store(&store, "turned", place, size, Some(&global), &GroupOptions::default()).unwrap();
    assert_eq!((group.rank(), group.global_rank()), (place, rank));
    let mut tree = tree_of(rank);
    broadcast(&mut tree, size - 1, &group, &options).unwrap();
    check(&tree, |leaf, element| value(size - 1, leaf, element));
    let error = Group::from_store(&store, "x", 0, size, Some(&[]), &GroupOptions::default()).unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidArgument);
    barrier(&world, &options).unwrap(); // until then rank 0 serves
}

#[test]
fn a_tree_does_not_keep_results_that_were_given() {
    let group = group();
    let tree = tree_of(group.rank());
    let options = CallOptions::default();
    let before = live_handles();
    drop(all_gather_async(&tree, &group, &options).unwrap().wait().unwrap());
    assert_eq!(live_handles(), before);
    // Of a work that nobody waited for the tree keeps the handle, to wait for it.
    drop(all_gather_async(&tree, &group, &options).unwrap());
    assert_eq!(live_handles(), before + 1);
    barrier(&group, &options).unwrap();
}
