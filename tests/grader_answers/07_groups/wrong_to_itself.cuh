// This rank's own rows need no way home.
// EXERCISE-BEGIN 2
const int others = num_ranks() - 1, group = item / others;
return {(rank() + item % others) % num_ranks(), group};
// EXERCISE-END 2
