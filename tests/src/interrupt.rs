//! Ctrl-C, SIGTERM and a closed terminal take down the labs of this process before it ends.

use std::{
    io::Write,
    sync::{Mutex, Once, PoisonError, atomic::AtomicBool, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use tokio::signal::unix::{SignalKind, signal};

use crate::{lab, settings::Settings};

static LABS: Mutex<Vec<Settings>> = Mutex::new(Vec::new());
static CHILDREN: Mutex<Vec<i32>> = Mutex::new(Vec::new());
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static HANDLER: Once = Once::new();

/// From now on, a signal takes this lab down.
pub fn protect(settings: &Settings) {
    let mut labs = LABS.lock().unwrap_or_else(PoisonError::into_inner);
    if !labs.contains(settings) {
        labs.push(settings.clone());
    }
    drop(labs);
    listen();
}

fn listen() {
    HANDLER.call_once(|| {
        thread::spawn(handle);
    });
}

/// From now on, a signal leaves this lab alone.
pub fn release(settings: &Settings) {
    LABS.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .retain(|s| s.name != settings.name);
}

/// From now on, a signal also ends this child. A signal from a terminal reaches it anyway, one sent to this process alone
/// does not.
pub fn ends_with_us(child: i32) {
    CHILDREN.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    listen();
}

/// The child has ended, or is about to be.
pub fn ends_by_itself(child: i32) {
    CHILDREN
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .retain(|c| *c != child);
}

/// Blocks for ever once a signal has come: whoever would start something now must not, as it would outlive the clean-up.
pub fn stop_here_when_interrupted() {
    while INTERRUPTED.load(Ordering::SeqCst) && thread::current().name() != Some(HANDLER_NAME) {
        thread::sleep(Duration::from_secs(1));
    }
}

/// Sleeps, but stops here for ever once a signal has come.
pub fn pause(duration: Duration) {
    let end = Instant::now() + duration;
    loop {
        stop_here_when_interrupted();
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        thread::sleep(left.min(Duration::from_millis(100)));
    }
}

/// To be called with an error, before anything is cleaned up because of it: a signal from the terminal ends the programs
/// that were started, too, and so the error may be nothing but the signal, which the handler is about to deal with.
pub fn stop_here_when_about_to_be_interrupted() {
    pause(Duration::from_millis(500));
}

const HANDLER_NAME: &str = "interrupt";

fn handle() {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return;
    };
    let received = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {}, _ = hangup.recv() => {} }
        std::io::Result::Ok(())
    });
    if received.is_err() {
        return;
    }
    INTERRUPTED.store(true, Ordering::SeqCst);
    for child in CHILDREN.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        // One that has ended meanwhile is fine too.
        let _ = Pid::from_raw(*child).map(|pid| kill_process(pid, Signal::KILL));
    }
    let labs = LABS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let clean = thread::Builder::new().name(HANDLER_NAME.to_owned()).spawn(move || {
        for settings in &labs {
            let mut err = std::io::stderr();
            let _ = writeln!(err, "\ninterrupted: the lab {} goes down", settings.name);
            if let Err(error) = lab::down(settings) {
                let _ = writeln!(err, "error: {error}");
            }
        }
    });
    if let Ok(thread) = clean {
        let _ = thread.join();
    }
    #[expect(clippy::exit, reason = "the main thread waits for ever by now")]
    std::process::exit(130);
}
