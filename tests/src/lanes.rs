//! How many clusters of tests run side by side in this process: two, as most of their time is spent waiting; what needs the
//! machine for itself, waits for both to end.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Most clusters side by side.
pub const LANES: usize = 2;

#[derive(Debug, Default)]
struct Taken {
    lanes: [bool; LANES],
    /// Somebody waits for all of them: nobody else gets one before.
    wanted_by: usize,
}

#[derive(Debug)]
struct Road {
    taken: Mutex<Taken>,
    changed: Condvar,
}

static ROAD: Road = Road {
    taken: Mutex::new(Taken {
        lanes: [false; LANES],
        wanted_by: 0,
    }),
    changed: Condvar::new(),
};

/// One lane, or all. Dropped, it is free for others.
#[derive(Debug)]
pub struct Lane {
    road: &'static Road,
    lanes: std::ops::Range<usize>,
}

impl Lane {
    /// Which one it is, from 0; of all, the first.
    #[must_use]
    pub fn number(&self) -> usize {
        self.lanes.start
    }
}

/// Waits for a lane. A thread that has one must not ask for another.
#[must_use]
pub fn take() -> Lane {
    ROAD.take()
}

/// Waits until nothing else runs, and keeps others waiting: for what is measured, and for what fills the machine.
#[must_use]
pub fn take_all() -> Lane {
    ROAD.take_all()
}

impl Road {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        // one that failed has taken its cluster down
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, taken: MutexGuard<'a, Taken>) -> MutexGuard<'a, Taken> {
        self.changed.wait(taken).unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&'static self) -> Lane {
        let mut taken = self.lock();
        loop {
            let free = taken.lanes.iter().position(|taken| !taken);
            match free.filter(|_| taken.wanted_by == 0) {
                Some(number) => {
                    taken.lanes[number] = true;
                    return Lane {
                        road: self,
                        lanes: number..number + 1,
                    };
                }
                None => taken = self.wait(taken),
            }
        }
    }

    fn take_all(&'static self) -> Lane {
        let mut taken = self.lock();
        taken.wanted_by += 1;
        while taken.lanes.contains(&true) {
            taken = self.wait(taken);
        }
        taken.lanes = [true; LANES];
        taken.wanted_by -= 1;
        Lane {
            road: self,
            lanes: 0..LANES,
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut taken = self.road.lock();
        taken.lanes[self.lanes.clone()].fill(false);
        self.road.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread, time::Duration};

    use super::*;

    #[test]
    fn two_run_side_by_side_and_one_that_wants_all_runs_alone_and_is_not_overtaken() {
        static OWN: Road = Road {
            taken: Mutex::new(Taken {
                lanes: [false; LANES],
                wanted_by: 0,
            }),
            changed: Condvar::new(),
        };
        let (first, second) = (OWN.take(), OWN.take());
        assert_eq!((first.number(), second.number()), (0, 1));
        let (say, said) = mpsc::channel();
        let told = say.clone();
        let alone = thread::spawn(move || {
            let all = OWN.take_all();
            told.send("all").unwrap();
            thread::sleep(Duration::from_millis(50));
            drop(all);
        });
        while OWN.lock().wanted_by == 0 {
            thread::yield_now();
        }
        drop(first);
        let later = thread::spawn(move || {
            let lane = OWN.take();
            say.send("one").unwrap();
            drop(lane);
        });
        assert!(said.recv_timeout(Duration::from_millis(100)).is_err());
        drop(second);
        assert_eq!([said.recv().unwrap(), said.recv().unwrap()], ["all", "one"]);
        alone.join().unwrap();
        later.join().unwrap();
        assert_eq!(OWN.take_all().number(), 0);
    }
}
