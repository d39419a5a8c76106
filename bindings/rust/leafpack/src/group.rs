//! Groups of ranks.

use std::cell::Cell;
use std::marker::PhantomData;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::time::Duration;

use leafpack_sys as sys;

use crate::error::{assure_interface, check, Error, Result};
use crate::options::{c_string, milliseconds, milliseconds_of_call, refusal_of, text_or_null, with_interrupt};
use crate::store::Store;

/// How to make a group; `Default` has them all.
#[derive(Clone, Copy, Default)]
pub struct GroupOptions<'o> {
    /// "gloo", "socket" or "shm". If None: gloo, or the parent's.
    pub backend: Option<&'o str>,
    /// Of calls that give none. If None: five minutes, or the parent's.
    pub timeout: Option<Duration>,
    /// The network interface. If None: chosen, or the parent's.
    pub interface_name: Option<&'o str>,
    /// Asked about every 50 ms while the making of the group waits for a store that is reached by TCP, and by
    /// [`Group::split`]; true gives up.
    pub interrupt: Option<&'o dyn Fn() -> bool>,
}

impl GroupOptions<'_> {
    /// Makes a call, or, where it is not `ready`, refuses it.
    fn with_raw(
        &self,
        ready: Result<()>,
        call: impl FnOnce(*const sys::leafpack_group_options) -> *mut sys::leafpack_error,
    ) -> Result<()> {
        assure_interface();
        let texts = ready.and_then(|()| {
            Ok((self.backend.map(c_string).transpose()?, self.interface_name.map(c_string).transpose()?))
        });
        let refusal = texts.as_ref().err().map(|error| refusal_of(error.message()));
        let (backend, interface_name) = texts.unwrap_or_default();
        with_interrupt(self.interrupt, |interrupt, interrupt_context| {
            call(&sys::leafpack_group_options {
                struct_size: std::mem::size_of::<sys::leafpack_group_options>(),
                backend: text_or_null(&backend),
                timeout_ms: milliseconds_of_call(self.timeout),
                interface_name: text_or_null(&interface_name),
                interrupt,
                interrupt_context,
                refusal: text_or_null(&refusal),
            })
        })
    }

    /// Calls a function that gives a group, or none.
    fn made(
        &self,
        ready: Result<()>,
        make: impl FnOnce(*const sys::leafpack_group_options, *mut *mut sys::leafpack_group) -> *mut sys::leafpack_error,
    ) -> Result<Option<Group>> {
        let mut made = Made(ptr::null_mut());
        self.with_raw(ready, |options| make(options, &mut made.0))?;
        Ok(made.take())
    }

    fn made_one(
        &self,
        make: impl FnOnce(*const sys::leafpack_group_options, *mut *mut sys::leafpack_group) -> *mut sys::leafpack_error,
    ) -> Result<Group> {
        Ok(self.made(Ok(()), make)?.expect("the library gave no group"))
    }
}

/// A place for the library to put a group in, which has an owner even when a closure's panic goes on.
#[repr(transparent)]
struct Made(*mut sys::leafpack_group);

impl Made {
    fn take(&mut self) -> Option<Group> {
        NonNull::new(std::mem::replace(&mut self.0, ptr::null_mut())).map(Group::from_raw)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// A set of ranks that issue collectives together, in one order.
///
/// A group may be sent to another thread but not shared by two: calls on one group come from one
/// thread at a time. Making one talks to nobody but the store at which the ranks meet; the first
/// collective connects. Dropping it waits up to 5 s for calls in flight, then leaves.
#[derive(Debug)]
pub struct Group {
    raw: NonNull<sys::leafpack_group>,
    _one_thread_at_a_time: PhantomData<Cell<()>>,
}

// SAFETY: the library's functions may be called from any thread.
unsafe impl Send for Group {}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: our own handle, freed once.
        unsafe { sys::leafpack_group_free(self.raw.as_ptr()) }
    }
}

// SAFETY, of all below: arguments live during the call, as the header asks.
impl Group {
    fn from_raw(raw: NonNull<sys::leafpack_group>) -> Group {
        Group { raw, _one_thread_at_a_time: PhantomData }
    }

    pub(crate) fn as_raw(&self) -> *mut sys::leafpack_group {
        self.raw.as_ptr()
    }

    /// All ranks of the job, from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, as launchers set them.
    pub fn from_environment(options: &GroupOptions<'_>) -> Result<Group> {
        options.made_one(|options, raw| unsafe { sys::leafpack_group_from_environment(options, raw) })
    }

    /// Ranks 0 to size - 1 that meet in a file which all of them see.
    pub fn from_file(path: &Path, rank: i32, size: i32, options: &GroupOptions<'_>) -> Result<Group> {
        let text = path.to_str().ok_or_else(|| Error::invalid_argument(format!("{path:?} is no UTF-8")))?;
        let path = c_string(text)?;
        options
            .made_one(|options, raw| unsafe { sys::leafpack_group_from_file(path.as_ptr(), rank, size, options, raw) })
    }

    /// `env://` (rank and size -1), `tcp://HOST:PORT` (rank 0 listens there), `file://PATH`.
    pub fn from_url(url: &str, rank: i32, size: i32, options: &GroupOptions<'_>) -> Result<Group> {
        let url = c_string(url)?;
        options.made_one(|options, raw| unsafe { sys::leafpack_group_from_url(url.as_ptr(), rank, size, options, raw) })
    }

    /// Ranks 0 to size - 1 that meet in a store. `prefix` keeps the group apart from other users of the store:
    /// equal on all ranks, never used twice on one store. `global_ranks`, one for each place in the group, are the
    /// ranks in the job; equal to the places if None. The group has a connection of its own.
    pub fn from_store(
        store: &Store,
        prefix: &str,
        rank: i32,
        size: i32,
        global_ranks: Option<&[i32]>,
        options: &GroupOptions<'_>,
    ) -> Result<Group> {
        let prefix = c_string(prefix)?;
        if let Some(ranks) = global_ranks {
            if usize::try_from(size) != Ok(ranks.len()) {
                return Err(Error::invalid_argument(format!("{} global ranks for a group of {size}", ranks.len())));
            }
        }
        let ranks = global_ranks.map_or(ptr::null(), |ranks| ranks.as_ptr());
        options.made_one(|options, raw| unsafe {
            sys::leafpack_group_from_store(store.as_raw(), prefix.as_ptr(), rank, size, ranks, options, raw)
        })
    }

    /// Ranks that are threads of this process: element r is for the thread that is rank r.
    ///
    /// ```
    /// # fn main() -> leafpack::Result<()> {
    /// use leafpack::{all_reduce, AllReduceOptions, Group, GroupOptions, Tensor, TensorDict};
    ///
    /// let groups = Group::local(2, &GroupOptions::default())?;
    /// std::thread::scope(|scope| {
    ///     for group in groups {
    ///         scope.spawn(move || -> leafpack::Result<()> {
    ///             let mut tree = TensorDict::new();
    ///             tree.set("x", Tensor::from_vec(vec![1 + group.rank()], &[1])?)?;
    ///             all_reduce(&mut tree, &group, &AllReduceOptions::default())?;
    ///             assert_eq!(tree.slice::<i32>("x")?, [3]);
    ///             Ok(())
    ///         });
    ///     }
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn local(size: i32, options: &GroupOptions<'_>) -> Result<Vec<Group>> {
        // Room for each, even where the library refuses the size, which it does far below this one.
        let most = 1 << 20;
        let ready = if size <= most {
            Ok(())
        } else {
            Err(Error::invalid_argument(format!("{size} ranks as threads of one process: at most {most}")))
        };
        let mut made: Vec<Made> = (0..size.min(most)).map(|_| Made(ptr::null_mut())).collect();
        options
            .with_raw(ready, |options| unsafe { sys::leafpack_groups_in_process(size, options, made.as_mut_ptr().cast()) })?;
        Ok(made.iter_mut().filter_map(Made::take).collect())
    }

    /// The group of some ranks (of the job) of this one, in rising order; talks to nobody. `name` keeps apart
    /// groups over equal lists. FailedPrecondition on a rank that is no member. What the options do not give
    /// is this group's.
    pub fn new_group(&self, ranks: &[i32], name: Option<&str>, options: &GroupOptions<'_>) -> Result<Group> {
        let name = name.map(c_string).transpose()?;
        options.made_one(|options, raw| unsafe {
            let (count, name) = (ranks.len(), text_or_null(&name));
            sys::leafpack_group_of_ranks(self.as_raw(), ranks.as_ptr(), count, name, options, raw)
        })
    }

    /// A collective: ranks of one color get one group, ordered by `key`, then by rank; None for a rank
    /// without a color. What the options do not give is this group's.
    pub fn split(&self, color: Option<i32>, key: i32, options: &GroupOptions<'_>) -> Result<Option<Group>> {
        let ready = if color == Some(sys::LEAFPACK_NO_COLOR) {
            Err(Error::invalid_argument(format!("the color {} stands for none", sys::LEAFPACK_NO_COLOR)))
        } else {
            Ok(())
        };
        let color = color.unwrap_or(sys::LEAFPACK_NO_COLOR);
        options.made(ready, |options, raw| unsafe { sys::leafpack_group_split(self.as_raw(), color, key, options, raw) })
    }

    fn number(
        &self,
        get: unsafe extern "C" fn(*const sys::leafpack_group, *mut i32) -> *mut sys::leafpack_error,
    ) -> i32 {
        let mut number = 0;
        // A handle that lives tells about itself.
        check(unsafe { get(self.as_raw(), &mut number) }).expect("a group tells about itself");
        number
    }

    /// This process's place in the group.
    pub fn rank(&self) -> i32 {
        self.number(sys::leafpack_group_rank)
    }

    pub fn size(&self) -> i32 {
        self.number(sys::leafpack_group_size)
    }

    /// This process's place in the job.
    pub fn global_rank(&self) -> i32 {
        self.number(sys::leafpack_group_global_rank)
    }

    /// From a place in the group to the rank in the job.
    pub fn to_global(&self, group_rank: i32) -> Result<i32> {
        let mut rank = 0;
        check(unsafe { sys::leafpack_group_to_global(self.as_raw(), group_rank, &mut rank) })?;
        Ok(rank)
    }

    /// From a rank in the job to the place in the group.
    pub fn to_group(&self, global_rank: i32) -> Result<i32> {
        let mut rank = 0;
        check(unsafe { sys::leafpack_group_to_group(self.as_raw(), global_rank, &mut rank) })?;
        Ok(rank)
    }

    /// Lets calls in flight end for at most `timeout`, gives the rest up, and leaves.
    pub fn shutdown(self, timeout: Duration) -> Result<()> {
        let timeout = milliseconds(Some(timeout))?;
        check(unsafe { sys::leafpack_group_shutdown(self.as_raw(), timeout) })
    }
}
