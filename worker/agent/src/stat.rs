//! What the kernel says of any process: `/proc/PID/stat`.

/// A process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stat {
    /// Of its program, at most 15 bytes.
    pub(crate) name: String,
    /// The kernel's letter: `T` and `t` are stopped, `Z` and `X` are gone.
    pub(crate) state: char,
    /// Its process group.
    pub(crate) group: i32,
}

impl Stat {
    /// `None` when it is gone.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// `77 (sleep) S 70 77 …`; the name may hold anything, parentheses included.
    fn parse(text: &str) -> Option<Self> {
        let (name, rest) = text.split_once('(')?.1.rsplit_once(')')?;
        let mut fields = rest.split_whitespace();
        let (state, _parent, group) = (fields.next()?, fields.next()?, fields.next()?);
        let (state, group) = (state.chars().next()?, group.parse().ok()?);
        Some(Self { name: name.to_owned(), state, group })
    }

    /// Whether a signal or a debugger has stopped it.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self.state, 'T' | 't')
    }
}

/// The letter of a process's state; `None` when it is gone.
pub(crate) fn process_state(pid: i32) -> Option<char> {
    Stat::of(pid).map(|it| it.state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let stat = Stat::parse("77 (a) b (c)) t 70 76 75 0 -1").unwrap();
        assert_eq!((stat.name.as_str(), stat.state, stat.group), ("a) b (c)", 't', 76));
        assert!(stat.is_stopped());
        assert_eq!(Stat::parse("77 (a"), None);
        assert!(!Stat::of(i32::try_from(std::process::id()).unwrap()).unwrap().is_stopped());
    }
}
