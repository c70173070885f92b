//! The reaper: a process between the pool and the command, which sees to it that nothing of the command's tree is left.
//!
//! ```text
//!   host ───────── socket ─────────▶ reaper ──▶ leader (the command) ──▶ whatever it starts
//!     a number: so long it may live      │                                      │
//!     half closed: TERM, grace, KILL     │                                      │
//!     closed, or the host is gone: KILL  └◀───────── orphans come here ─────────┘
//! ```
//!
//! A library can neither re-execute its host nor make it adopt orphans, for then it would reap the host's own children. So the child
//! that is forked for the command forks once more before it becomes the command: the inner one does, the outer one stays what it is, a
//! subreaper to which every orphan of the tree falls, also one that has left its process group and session. It goes when nobody is
//! left. It ends the tree when the leader ends, when it is told to, when it gets a TERM, when its time is up, and when the host dies:
//! it is another process, and a `kill -9` of the host does not reach it.
//!
//! All here runs in a process that was forked from one with many threads, whose locks may be held for ever. So there are only system
//! calls: no allocation, no panic, no lock, nothing of the standard library that might do one of them.

#![expect(unsafe_code, reason = "forking and signalling before exec can be done with raw system calls alone")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;

use libc::{c_int, c_long, pid_t};

use super::{ENDED, EXITED, ORDER_BYTES, REPORT_BYTES, STARTED};

/// How long it is at most until children are looked for again while they are being killed. Their deaths wake it earlier.
const LOOK_AGAIN_MS: i64 = 100;

/// What the inner process waits for before it becomes the command.
const GO: c_int = libc::SIGUSR1;

/// What a reaper has to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Orders {
    /// Its end of the socket to the host.
    pub(super) socket: RawFd,
    /// The process that it works for.
    pub(super) host: pid_t,
    /// How long the command has between TERM and KILL.
    pub(super) grace_ms: i64,
    /// How long it may run if the host says nothing more, because it is frozen.
    pub(super) limit_ms: i64,
}

/// Becomes two processes: the inner one returns and is to become the command, the outer one never returns.
///
/// # Errors
///
/// When the system has no room for another process.
///
/// # Safety
///
/// To be called between fork and exec only, in a process that is to do nothing else.
pub(super) unsafe fn split(orders: Orders) -> io::Result<()> {
    // SAFETY: system calls on values of this function; fork as the raw call, since the libraries' handlers may take locks.
    unsafe {
        // Blocked before there is a second one: whatever comes from now on, a broken pipe above all, must not end the outer one.
        set_signal_mask(All::Blocked);
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
        libc::setsid();
        // Were they ignored, as the host may have it, nobody would be told how the leader ended, which may be soon.
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
        let outer = libc::getpid();
        let leader = fork();
        if leader < 0 {
            return Err(io::Error::last_os_error());
        }
        if leader > 0 {
            libc::setpgid(leader, leader);
            Reaper::new(orders, leader).keep();
        }
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        if libc::getppid() != outer {
            libc::_exit(1);
        }
        // What the host ignores the command would ignore too.
        for signal in 1..=libc::SIGRTMAX() {
            libc::signal(signal, libc::SIG_DFL);
        }
        // Until the outer one has let go of the host and told it so: whoever stops it then keeps nobody waiting who starts a command.
        wait_for(GO);
        set_signal_mask(All::Open);
        Ok(())
    }
}

/// Whether all signals are to be kept waiting.
#[derive(Clone, Copy)]
enum All {
    Blocked,
    Open,
}

fn set_signal_mask(all: All) {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is filled before it is used.
    unsafe {
        match all {
            All::Blocked => libc::sigfillset(set.as_mut_ptr()),
            All::Open => libc::sigemptyset(set.as_mut_ptr()),
        };
        libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// Waits for a signal that is blocked, and takes it.
fn wait_for(signal: c_int) {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is filled before it is used.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        let mut taken = 0;
        libc::sigwait(set.as_ptr(), &raw mut taken);
    }
}

/// The raw system call, without the handlers that libraries have registered for a fork.
fn fork() -> pid_t {
    // SAFETY: without a stack and without shared memory it is a plain fork. The order of arguments differs between architectures, but
    // all but the signal are zero.
    #[cfg(not(target_arch = "s390x"))]
    let pid = unsafe { libc::syscall(libc::SYS_clone, c_long::from(libc::SIGCHLD), 0, 0, 0, 0) };
    // SAFETY: there the stack comes first.
    #[cfg(target_arch = "s390x")]
    let pid = unsafe { libc::syscall(libc::SYS_clone, 0, c_long::from(libc::SIGCHLD), 0, 0, 0) };
    // A pid fits, and so does -1.
    pid as pid_t
}

/// How far the end of the tree has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// It may do what it likes.
    Runs,
    /// It was asked to end, and is killed then.
    Asked { kill_at_ms: i64 },
    /// It is killed, whatever is left of it.
    Killed,
}

struct Reaper {
    orders: Orders,
    leader: pid_t,
    /// Whether the leader is there, so that its number is its own.
    has_leader: bool,
    /// Whether the list of children under `/proc` speaks of our numbers.
    can_list: bool,
    phase: Phase,
    /// Tells of deaths, and of a TERM.
    signals: RawFd,
    /// Tells of the end of the host.
    host: RawFd,
    limit_at_ms: i64,
}

impl Reaper {
    fn new(orders: Orders, leader: pid_t) -> Reaper {
        let limit_at_ms = now_ms().saturating_add(orders.limit_ms);
        Reaper {
            orders,
            leader,
            has_leader: true,
            can_list: false,
            phase: Phase::Runs,
            signals: -1,
            host: -1,
            limit_at_ms,
        }
    }

    /// The life of the outer process.
    fn keep(mut self) -> ! {
        self.settle_down();
        self.report(STARTED, self.leader);
        kill(self.leader, GO);
        loop {
            if !self.reap() {
                // SAFETY: nobody is left, and nothing is to be run at the end. Whoever was forked from the host at the wrong moment
                // may have the socket too, so that its end alone would not be heard.
                unsafe {
                    libc::shutdown(self.orders.socket, libc::SHUT_RDWR);
                    libc::_exit(0)
                };
            }
            if self.phase == Phase::Killed {
                self.kill_children();
            }
            self.wait();
            self.look_at_the_time();
        }
    }

    /// Keeps nothing of the host but the socket.
    fn settle_down(&mut self) {
        close_all_but(self.orders.socket);
        // SAFETY: system calls with constant strings, and a set that is filled before it is used.
        unsafe {
            // Where the host was must be free to be unmounted and removed.
            libc::chdir(c"/".as_ptr());
            libc::prctl(libc::PR_SET_NAME, c"workcrew-reaper".as_ptr());
            let mut set = MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
            libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
            self.signals = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            self.host = libc::syscall(libc::SYS_pidfd_open, c_long::from(self.orders.host), 0) as c_int;
            // It may have died before there was something to hear of it.
            if libc::getppid() != self.orders.host {
                self.phase = Phase::Killed;
            }
            self.can_list = proc_knows_us();
        }
    }

    /// Takes in whoever has ended; `false` if nobody is left.
    fn reap(&mut self) -> bool {
        loop {
            let mut status: c_int = 0;
            // SAFETY: a system call that writes to a local.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
            match pid {
                0 => return true,
                pid if pid < 0 => return false,
                pid if pid == self.leader && self.has_leader => {
                    self.has_leader = false;
                    self.report(if self.phase == Phase::Runs { EXITED } else { ENDED }, status);
                    self.phase = Phase::Killed;
                }
                _ => {}
            }
        }
    }

    /// Kills whoever is a child now. What those leave behind becomes our child, and is killed in the next round.
    fn kill_children(&self) {
        if self.has_leader {
            kill(-self.leader, libc::SIGKILL);
            kill(self.leader, libc::SIGKILL);
        }
        if !self.can_list {
            return;
        }
        // SAFETY: system calls with a constant string and a local buffer of the length that is told.
        unsafe {
            let list = libc::open(c"/proc/thread-self/children".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            let mut buffer = [0_u8; 4_096];
            let mut pid: pid_t = 0;
            loop {
                let count = libc::read(list, buffer.as_mut_ptr().cast(), buffer.len());
                let Ok(count @ 1..) = usize::try_from(count) else { break };
                for &byte in buffer.iter().take(count) {
                    if byte.is_ascii_digit() {
                        pid = pid.wrapping_mul(10).wrapping_add(pid_t::from(byte.wrapping_sub(b'0')));
                        continue;
                    }
                    if pid > 1 {
                        kill(pid, libc::SIGKILL);
                    }
                    pid = 0;
                }
            }
            libc::close(list);
        }
    }

    /// Sleeps until something happens, and takes note of it.
    fn wait(&mut self) {
        let watch = |fd, events| libc::pollfd { fd, events, revents: 0 };
        // Half closed it stays readable: who has heard of that listens only for the rest.
        let asked = if self.phase == Phase::Runs { libc::POLLIN | libc::POLLRDHUP } else { 0 };
        let socket = if self.phase == Phase::Killed { -1 } else { self.orders.socket };
        let host = if self.phase == Phase::Killed { -1 } else { self.host };
        let mut watched = [watch(socket, asked), watch(self.signals, libc::POLLIN), watch(host, libc::POLLIN)];
        // SAFETY: a system call on a local array of the length that is told.
        let count = unsafe { libc::poll(watched.as_mut_ptr(), 3, self.sleep_ms()) };
        // Who has ended before it could be asked has ended by itself.
        self.reap();
        if count <= 0 {
            return;
        }
        let [socket, signals, host] = watched.map(|watched| watched.revents);
        if signals != 0 && self.is_told_to_end() {
            self.ask();
        }
        if socket & (libc::POLLIN | libc::POLLRDHUP) != 0 {
            self.hear_orders();
        }
        if socket & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 || host != 0 {
            self.phase = Phase::Killed;
        }
    }

    fn sleep_ms(&self) -> c_int {
        let until_ms = match self.phase {
            Phase::Runs => self.limit_at_ms,
            Phase::Asked { kill_at_ms } => kill_at_ms,
            Phase::Killed => return LOOK_AGAIN_MS as c_int,
        };
        c_int::try_from(until_ms.saturating_sub(now_ms()).max(0)).unwrap_or(c_int::MAX)
    }

    fn look_at_the_time(&mut self) {
        match self.phase {
            Phase::Runs if now_ms() >= self.limit_at_ms => self.ask(),
            Phase::Asked { kill_at_ms } if now_ms() >= kill_at_ms => self.phase = Phase::Killed,
            Phase::Runs | Phase::Asked { .. } | Phase::Killed => {}
        }
    }

    /// Takes in what the host says: how much longer the command may run, or, once it has closed its side, that it is to end.
    fn hear_orders(&mut self) {
        loop {
            let mut limit_ms: i64 = 0;
            // SAFETY: a system call that writes at most as many bytes to a local as that has.
            let read =
                unsafe { libc::recv(self.orders.socket, (&raw mut limit_ms).cast(), ORDER_BYTES, libc::MSG_DONTWAIT) };
            match usize::try_from(read) {
                Ok(ORDER_BYTES) => self.limit_at_ms = now_ms().saturating_add(limit_ms),
                Ok(_) => return self.ask(),
                Err(_) => return,
            }
        }
    }

    /// Asks the command to end in order.
    fn ask(&mut self) {
        if self.phase != Phase::Runs {
            return;
        }
        self.phase = Phase::Asked { kill_at_ms: now_ms().saturating_add(self.orders.grace_ms) };
        if self.has_leader {
            kill(-self.leader, libc::SIGTERM);
            // One that stopped itself would hear of it only when it goes on.
            kill(-self.leader, libc::SIGCONT);
        }
    }

    /// Empties the signals; whether one of them was a TERM. A death is seen by looking.
    fn is_told_to_end(&self) -> bool {
        let mut is_told = false;
        loop {
            let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
            let size = size_of::<libc::signalfd_siginfo>();
            // SAFETY: a system call that writes at most `size` bytes to a local of that size; zeros are a value of it.
            let (read, info) =
                unsafe { (libc::read(self.signals, info.as_mut_ptr().cast(), size), info.assume_init()) };
            if read <= 0 {
                return is_told;
            }
            is_told |= i64::from(info.ssi_signo) == i64::from(libc::SIGTERM);
        }
    }

    /// Tells the host. Nobody waits for room: if it does not listen, so be it.
    fn report(&self, what: i32, number: i32) {
        let report = [what, number];
        // SAFETY: a system call on a local of the length that is told.
        unsafe {
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            libc::send(self.orders.socket, report.as_ptr().cast(), REPORT_BYTES, flags);
        }
    }
}

fn kill(pid: pid_t, signal: c_int) {
    // SAFETY: a system call. The number is that of a child that was not taken in yet, or of its group.
    unsafe {
        libc::kill(pid, signal);
    }
}

/// Closes every descriptor but one. The pipe through which a spawn waits for its exec is among them.
fn close_all_but(kept: RawFd) {
    let close_range = |first: RawFd, last: libc::c_uint| {
        // SAFETY: a system call. Nobody else uses descriptors in this process.
        unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) }
    };
    let before = if kept > 0 { close_range(0, kept as libc::c_uint - 1) } else { 0 };
    if before == 0 && close_range(kept + 1, libc::c_uint::MAX) == 0 {
        return;
    }
    // Kernels before 5.9 do not know the call.
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: system calls on a local, and on descriptors that nobody else uses.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        let last = RawFd::try_from(limit.rlim_cur).unwrap_or(RawFd::MAX).min(1 << 20);
        for descriptor in (0..last).filter(|&descriptor| descriptor != kept) {
            libc::close(descriptor);
        }
    }
}

/// Whether `/proc` speaks of the processes that we can signal. One of another namespace has other numbers.
fn proc_knows_us() -> bool {
    let mut buffer = [0_u8; 32];
    // SAFETY: a system call with a constant string and a local buffer of the length that is told.
    let length = unsafe { libc::readlink(c"/proc/self".as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) };
    let Ok(length) = usize::try_from(length) else { return false };
    let digit = |number: pid_t, &byte: &u8| number.wrapping_mul(10).wrapping_add(pid_t::from(byte.wrapping_sub(b'0')));
    // SAFETY: a system call.
    buffer.iter().take(length).fold(0, digit) == unsafe { libc::getpid() }
}

#[expect(clippy::useless_conversion, reason = "they are narrower on other machines")]
fn now_ms() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a system call that writes to a local.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    i64::from(time.tv_sec).saturating_mul(1_000).saturating_add(i64::from(time.tv_nsec) / 1_000_000)
}
