//! What a pool says of itself: in numbers that add up, in its log, and to its observer.
