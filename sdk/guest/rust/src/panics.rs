//! A trap loses a panic's message; sent to the log first, it becomes the failure's message.

use std::sync::Once;

pub(crate) fn report() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        std::panic::set_hook(Box::new(|panic| crate::log::error(&panic.to_string())));
    });
}
