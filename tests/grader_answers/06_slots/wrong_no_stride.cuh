// Neighbours in memory are not the next source.
// EXERCISE-BEGIN 3
int rows = 0;
for (int s = 0; s < source; ++s) rows += counts[s];
return rows;
// EXERCISE-END 3
