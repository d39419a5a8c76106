// Programs that must not compile, each beside one that must: a case is a function that uses what is wrong
// where `cfg(wrong)` is set. Read by compile_fail_test.py.
#![allow(dead_code, unused_variables, unused_mut)]
use leafpack::*;

fn options() -> AllReduceOptions<'static> {
    AllReduceOptions::default()
}

// case: reading_a_leaf_in_flight E0502
fn reading_a_leaf_in_flight(tree: &mut TensorDict<'static>, group: &Group) -> Result<()> {
    let work = all_reduce_async(tree, group, &options())?;
    #[cfg(wrong)]
    tree.slice::<f32>("x")?;
    work.wait()?;
    tree.slice::<f32>("x")?;
    Ok(())
}

// case: writing_a_leaf_in_flight E0499
fn writing_a_leaf_in_flight(tree: &mut TensorDict<'static>, group: &Group) -> Result<()> {
    let work = all_reduce_async(tree, group, &options())?;
    #[cfg(wrong)]
    tree.slice_mut::<f32>("x")?;
    work.wait()?;
    tree.slice_mut::<f32>("x")?;
    Ok(())
}

// case: writing_a_leaf_that_is_being_sent E0502
fn writing_a_leaf_that_is_being_sent(tree: &mut TensorDict<'static>, group: &Group) -> Result<()> {
    let work = isend(tree, 1, group, &TransferOptions::default())?;
    tree.slice::<f32>("x")?; // may be read
    #[cfg(wrong)]
    tree.slice_mut::<f32>("x")?;
    work.wait()
}

// case: reading_one_of_several_trees_in_flight E0502
fn reading_one_of_several_trees_in_flight(trees: &mut [TensorDict<'static>], group: &Group) -> Result<()> {
    let work = reduce_scatter_async(trees, group, &options())?;
    #[cfg(wrong)]
    assert!(!trees.is_empty());
    work.wait()?;
    assert!(!trees.is_empty());
    Ok(())
}

// case: writing_a_tree_that_is_being_scattered E0502
fn writing_a_tree_that_is_being_scattered(trees: &mut [TensorDict<'static>], group: &Group) -> Result<()> {
    let work = scatter_async(trees, 0, group, &CallOptions::default())?;
    trees[0].slice::<f32>("x")?; // may be read
    #[cfg(wrong)]
    trees[0].slice_mut::<f32>("x")?;
    work.wait()?;
    Ok(())
}

// case: reading_a_tree_that_is_joined_into E0502
fn reading_a_tree_that_is_joined_into(own: &TensorDict<'static>, group: &Group) -> Result<()> {
    let mut into = TensorDict::new();
    let work = all_gather_joined_into_async(own, Joining::Stack, &mut into, group, &CallOptions::default())?;
    own.slice::<f32>("x")?; // may be read
    #[cfg(wrong)]
    into.slice::<f32>("x")?;
    work.wait()
}

// case: one_tree_in_two_calls E0499
fn one_tree_in_two_calls(tree: &mut TensorDict<'static>, group: &Group) -> Result<()> {
    let first = all_reduce_async(tree, group, &options())?;
    #[cfg(not(wrong))]
    first.wait()?;
    let second = all_reduce_async(tree, group, &options())?;
    #[cfg(wrong)]
    first.wait()?;
    second.wait()
}

// case: dropping_a_tree_in_flight E0505
fn dropping_a_tree_in_flight(mut tree: TensorDict<'static>, group: &Group) -> Result<()> {
    let work = all_reduce_async(&mut tree, group, &options())?;
    #[cfg(wrong)]
    drop(tree);
    work.wait()
}

// case: a_work_that_outlives_its_tree E0515
#[cfg(wrong)]
fn a_work_that_outlives_its_tree(group: &Group) -> Result<TreeWork<'static>> {
    let mut tree = TensorDict::new();
    all_reduce_async(&mut tree, group, &options())
}

// case: a_call_in_flight_over_borrowed_memory E0597
fn a_call_in_flight_over_borrowed_memory(group: &Group) -> Result<()> {
    let mut values = vec![1.0f32];
    #[cfg(wrong)]
    let tensor = Tensor::from_slice(&mut values, &[1])?;
    #[cfg(not(wrong))]
    let tensor = Tensor::from_vec(values, &[1])?;
    let mut tree = TensorDict::new();
    tree.set("x", tensor)?;
    all_reduce_async(&mut tree, group, &options())?.wait()
}

// case: bools_that_a_peer_can_write E0277
fn bools_that_a_peer_can_write(group: &Group) -> Result<()> {
    #[cfg(wrong)]
    let mut values = [true];
    #[cfg(not(wrong))]
    let mut values = [1u8];
    let mut tree = TensorDict::new();
    tree.set("x", Tensor::from_slice(&mut values, &[1])?)?;
    broadcast(&mut tree, 0, group, &CallOptions::default())
}

// case: a_tree_that_outlives_borrowed_memory E0515
fn a_tree_that_outlives_borrowed_memory() -> Result<TensorDict<'static>> {
    let mut values = vec![1.0f32];
    let mut tree = TensorDict::new();
    #[cfg(wrong)]
    tree.set("x", Tensor::from_slice(&mut values, &[1])?)?;
    #[cfg(not(wrong))]
    tree.set("x", Tensor::from_vec(values, &[1])?)?;
    Ok(tree)
}

// case: using_memory_that_a_tree_borrows E0503
fn using_memory_that_a_tree_borrows(group: &Group) -> Result<()> {
    let mut values = [1.0f32];
    let mut tree = TensorDict::new();
    tree.set("x", Tensor::from_slice(&mut values, &[1])?)?;
    #[cfg(wrong)]
    let sum = values[0] + 1.0;
    all_reduce(&mut tree, group, &options())
}

// case: two_mutable_slices_of_one_tree E0499
fn two_mutable_slices_of_one_tree(tree: &mut TensorDict<'_>) -> Result<()> {
    let first = tree.slice_mut::<f32>("x")?;
    #[cfg(not(wrong))]
    {
        first[0] = 1.0;
    }
    let second = tree.slice_mut::<f32>("x")?;
    #[cfg(wrong)]
    {
        first[0] = 1.0;
    }
    second[0] = 2.0;
    Ok(())
}

// case: a_slice_that_outlives_its_tree E0505
fn a_slice_that_outlives_its_tree(tree: TensorDict<'_>) -> Result<f32> {
    let slice = tree.slice::<f32>("x")?;
    #[cfg(wrong)]
    drop(tree);
    Ok(slice[0])
}

// case: using_a_tensor_that_a_tree_took E0382
fn using_a_tensor_that_a_tree_took(tree: &mut TensorDict<'static>, tensor: Tensor<'static>) -> Result<()> {
    #[cfg(not(wrong))]
    tensor.num_elements();
    tree.set("x", tensor)?;
    #[cfg(wrong)]
    tensor.num_elements();
    Ok(())
}

// case: dlpack_that_outlives_its_tensor E0505
fn dlpack_that_outlives_its_tensor(tensor: Tensor<'static>) -> Result<()> {
    let pack = tensor.to_dlpack()?;
    #[cfg(wrong)]
    drop(tensor);
    pack.as_ptr();
    Ok(())
}

// case: one_group_in_two_threads E0277
fn one_group_in_two_threads(group: Group) {
    std::thread::scope(|scope| {
        #[cfg(all(wrong, not(only_borrows)))]
        scope.spawn(|| group.rank());
        #[cfg(any(not(wrong), only_borrows))]
        scope.spawn(move || group.rank());
    });
}
