//! What comes of what the CLI states: a pure function of that and of what is remembered.

use super::turns::Moment;
use crate::node::state::{Desired, Memory};
use std::time::Duration;

/// What comes of what the CLI states.
#[derive(Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing changes.
    Same,
    /// This is to be remembered.
    New(Memory),
    /// It has changed too often: it waits for so long.
    TooOften(Duration),
}

/// What is to be remembered of a new wish. Changes of what is to serve are counted.
#[must_use]
pub fn wish(memory: &Memory, stated: Option<Desired>, now: &Moment) -> Wish {
    let given_up = memory.given_up.filter(|given_up| Some(*given_up) == stated);
    let desired = if given_up.is_some() {
        memory.desired
    } else {
        stated.unwrap_or(memory.desired)
    };
    if given_up == memory.given_up && desired == memory.desired {
        return Wish::Same;
    }
    let turns = if desired == memory.desired {
        memory.turns.clone()
    } else {
        match memory.turns.take(now) {
            Ok(turns) => turns,
            Err(wait) => return Wish::TooOften(wait),
        }
    };
    // the error of an attempt is told until the next one begins
    let error = memory.error.clone().filter(|_| desired == memory.desired);
    Wish::New(Memory {
        desired,
        given_up,
        error,
        turns,
        ..memory.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::guard::turns::{MOST, Turns, WINDOW};
    use Desired::{SelfHosted, Static};

    fn at(seconds: u64) -> Moment {
        Moment {
            boot: "b".into(),
            milliseconds: seconds * 1000,
        }
    }

    #[test]
    fn a_wish_that_was_given_up_waits_until_it_is_stated_anew() {
        let memory = |desired, given_up| Memory {
            desired,
            given_up,
            ..Memory::default()
        };
        let new = |desired, given_up| Some(memory(desired, given_up));
        for (before, stated, after) in [
            (memory(Static, None), Some(SelfHosted), new(SelfHosted, None)),
            (memory(SelfHosted, None), Some(SelfHosted), None),
            (memory(SelfHosted, None), None, None), // an absent annotation means: as the disk says
            (memory(Static, Some(SelfHosted)), Some(SelfHosted), None),
            (memory(Static, Some(SelfHosted)), None, new(Static, None)),
            (memory(Static, Some(SelfHosted)), Some(Static), new(Static, None)),
        ] {
            let found = match wish(&before, stated, &at(0)) {
                Wish::New(memory) => Some(Memory {
                    turns: Turns::default(),
                    ..memory
                }),
                Wish::Same => None,
                Wish::TooOften(wait) => panic!("{wait:?}"),
            };
            assert_eq!(found, after, "{before:?} {stated:?}");
        }
    }

    /// Whoever flaps the annotation causes so many hand-overs and no more; what is in force meanwhile is the last one made.
    #[test]
    fn a_wish_that_changes_without_end_is_held_back() {
        let mut memory = Memory::default();
        let mut made = 0;
        for second in 0..1700 {
            let stated = if second % 2 == 0 { SelfHosted } else { Static };
            match wish(&memory, Some(stated), &at(second)) {
                Wish::New(next) => {
                    made += 1;
                    memory = next;
                }
                Wish::Same => {}
                Wish::TooOften(wait) => assert!(!wait.is_zero() && wait <= WINDOW),
            }
        }
        assert_eq!(made, MOST);
        // withdrawing a wish that was given up, and what changes nothing, is not counted
        let given_up = Memory {
            given_up: Some(SelfHosted),
            ..memory.clone()
        };
        assert!(matches!(wish(&given_up, None, &at(1700)), Wish::New(_)));
        assert_eq!(wish(&memory, Some(memory.desired), &at(1700)), Wish::Same);
        // a reboot is a limit of its own
        let after = Moment {
            boot: "c".into(),
            ..at(1700)
        };
        let other = if memory.desired == Static { SelfHosted } else { Static };
        assert!(matches!(wish(&memory, Some(other), &after), Wish::New(_)));
    }
}
