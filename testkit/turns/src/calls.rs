//! Replacements of C library functions: simulated for threads that take turns, passed on to the C library for all
//! others.

use std::ffi::{CStr, c_int, c_long, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

use libc::{clockid_t, pthread_attr_t, pthread_t, size_t, ssize_t, timespec};

use crate::schedule::{Calling, EPOCH, LOOK, Member, Thread, Waits};

fn answer(outcome: Result<(), c_int>) -> c_long {
    match outcome {
        Ok(()) => 0,
        Err(errno) => {
            // SAFETY: the address of this thread's own errno.
            unsafe { *libc::__errno_location() = errno };
            -1
        }
    }
}

/// # Safety
/// `time` is null or points to a time.
unsafe fn duration(time: *const timespec) -> Option<Duration> {
    // SAFETY: by the contract.
    unsafe { time.as_ref() }.map(|time| Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// The C library's own function of that name and type.
macro_rules! real {
    ($name:literal as $type:ty) => {{
        static FOUND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
        let mut found = FOUND.load(Ordering::Relaxed);
        if found.is_null() {
            found = find($name);
            FOUND.store(found, Ordering::Relaxed);
        }
        // SAFETY: it is the C library's declaration of this function.
        unsafe { std::mem::transmute::<*mut c_void, $type>(found) }
    }};
}

fn find(name: &CStr) -> *mut c_void {
    // SAFETY: a name that ends with a zero.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    assert!(!found.is_null(), "the C library has no {name:?}");
    found
}

/// True if it is the address of a static.
fn is_static(address: usize) -> bool {
    unsafe extern "C" {
        // The linker's, for where the program lies in memory.
        static __executable_start: u8;
        static end: u8;
    }
    (&raw const __executable_start as usize..&raw const end as usize).contains(&address)
}

/// # Safety
/// As for the system call. It is declared with the most arguments of any; those that a caller has left out are not
/// read.
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if number == libc::SYS_futex
        && !is_static(a as usize)
        && let Some(me) = Calling::now()
    {
        let word = a as *const AtomicU32;
        let command = b as c_int & !libc::FUTEX_PRIVATE_FLAG;
        match command {
            // SAFETY: of the call; relative to now.
            libc::FUTEX_WAIT => {
                let time = unsafe { duration(d as *const timespec) };
                return answer(me.wait_for_word(word, c as u32, |now| Some(now + time?)));
            }
            // SAFETY: of the call; a moment of the monotonic clock.
            libc::FUTEX_WAIT_BITSET => {
                let until = unsafe { duration(d as *const timespec) };
                return answer(me.wait_for_word(word, c as u32, |_| until));
            }
            libc::FUTEX_WAKE => {
                let count = c as u32 as usize;
                let woken = me.turns.lock().wake(word, count);
                // Somebody who takes no turns may wait, too.
                let others = if woken < count {
                    let real = real!(c"syscall" as Syscall);
                    // SAFETY: of the call.
                    unsafe { real(number, a, b, (count - woken) as c_long, d, e, f) }
                } else {
                    0
                };
                me.pause();
                return woken as c_long + others.max(0);
            }
            _ => panic!("a futex call that is not known here: {command}"),
        }
    }
    let real = real!(c"syscall" as Syscall);
    // SAFETY: of the call.
    unsafe { real(number, a, b, c, d, e, f) }
}

type Syscall = unsafe extern "C" fn(c_long, ...) -> c_long;
type Start = extern "C" fn(*mut c_void) -> *mut c_void;

/// Body of a new thread, and its identity in the schedule.
struct Begin {
    member: Member,
    start: Start,
    with: *mut c_void,
}

extern "C" fn begin(begin: *mut c_void) -> *mut c_void {
    // SAFETY: it comes from `pthread_create` below, once.
    let Begin { member, start, with } = *unsafe { Box::from_raw(begin.cast::<Begin>()) };
    member.run(|| start(with))
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    handle: *mut pthread_t,
    attributes: *const pthread_attr_t,
    start: Start,
    with: *mut c_void,
) -> c_int {
    type Create = unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, Start, *mut c_void) -> c_int;
    let real = real!(c"pthread_create" as Create);
    let Some(me) = Calling::now() else {
        // SAFETY: of the call.
        return unsafe { real(handle, attributes, start, with) };
    };
    let mut state = me.turns.lock();
    let id = state.threads.len();
    state.threads.push(Thread::new());
    let begins = Box::into_raw(Box::new(Begin { member: Member { turns: me.turns.clone(), id }, start, with }));
    // SAFETY: of the call; the new thread owns what `begins` leads to.
    let outcome = unsafe { real(handle, attributes, begin, begins.cast()) };
    if outcome == 0 {
        // SAFETY: it was just written.
        state.threads[id].handle = unsafe { *handle };
        drop(state);
        me.pause();
    } else {
        state.threads[id].waits = Waits::HasEnded;
        // SAFETY: there is no thread that it could belong to.
        drop(unsafe { Box::from_raw(begins) });
    }
    outcome
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_join(handle: pthread_t, value: *mut *mut c_void) -> c_int {
    type Join = unsafe extern "C" fn(pthread_t, *mut *mut c_void) -> c_int;
    if let Some(me) = Calling::now() {
        let state = me.turns.lock();
        // The newest: handles are used again.
        if let Some(id) = state.threads.iter().rposition(|thread| thread.handle == handle)
            && state.threads[id].waits != Waits::HasEnded
        {
            me.wait(state, Waits::ForEndOf(id));
        }
    }
    let real = real!(c"pthread_join" as Join);
    // SAFETY: of the call.
    unsafe { real(handle, value) }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, time: *mut timespec) -> c_int {
    type Gettime = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;
    if matches!(clock, libc::CLOCK_MONOTONIC | libc::CLOCK_REALTIME)
        && let Some(me) = Calling::now()
    {
        let mut state = me.turns.lock();
        state.now += LOOK;
        let now = if clock == libc::CLOCK_REALTIME { EPOCH + state.now } else { state.now };
        let now = timespec { tv_sec: now.as_secs() as i64, tv_nsec: i64::from(now.subsec_nanos()) };
        // SAFETY: of the call.
        unsafe { time.write(now) };
        return 0;
    }
    let real = real!(c"clock_gettime" as Gettime);
    // SAFETY: of the call.
    unsafe { real(clock, time) }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_nanosleep(
    clock: clockid_t,
    flags: c_int,
    time: *const timespec,
    left: *mut timespec,
) -> c_int {
    type Sleep = unsafe extern "C" fn(clockid_t, c_int, *const timespec, *mut timespec) -> c_int;
    // SAFETY: of the call.
    if let (Some(me), Some(time)) = (Calling::now(), unsafe { duration(time) }) {
        let state = me.turns.lock();
        let until = if flags & libc::TIMER_ABSTIME != 0 { time } else { state.now + time };
        me.wait(state, Waits::Until(until));
        return 0;
    }
    let real = real!(c"clock_nanosleep" as Sleep);
    // SAFETY: of the call.
    unsafe { real(clock, flags, time, left) }
}

#[unsafe(no_mangle)]
extern "C" fn sched_yield() -> c_int {
    match Calling::now() {
        Some(me) => {
            me.pause();
            0
        }
        None => real!(c"sched_yield" as extern "C" fn() -> c_int)(),
    }
}

/// Reports two processors everywhere, because programs start threads for each.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn sched_getaffinity(process: libc::pid_t, bytes: size_t, set: *mut c_void) -> c_int {
    type Affinity = unsafe extern "C" fn(libc::pid_t, size_t, *mut c_void) -> c_int;
    if bytes > 0
        && let Some(_me) = Calling::now()
    {
        // SAFETY: of the call; a set has a bit for each processor.
        let set = unsafe { std::slice::from_raw_parts_mut(set.cast::<u8>(), bytes) };
        set.fill(0);
        set[0] = 0b11;
        return 0;
    }
    let real = real!(c"sched_getaffinity" as Affinity);
    // SAFETY: of the call.
    unsafe { real(process, bytes, set) }
}

/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut c_void, bytes: size_t, flags: c_uint) -> ssize_t {
    type Getrandom = unsafe extern "C" fn(*mut c_void, size_t, c_uint) -> ssize_t;
    if let Some(me) = Calling::now() {
        let mut state = me.turns.lock();
        for at in 0..bytes {
            let byte = state.random.below(256) as u8;
            // SAFETY: of the call.
            unsafe { buffer.cast::<u8>().add(at).write(byte) };
        }
        return bytes as ssize_t;
    }
    let real = real!(c"getrandom" as Getrandom);
    // SAFETY: of the call.
    unsafe { real(buffer, bytes, flags) }
}
