//! Workers that crash, and workers that do not come up.
