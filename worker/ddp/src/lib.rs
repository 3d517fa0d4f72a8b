//! Data parallel: buckets, grains, the fixed tree, the reducer.
