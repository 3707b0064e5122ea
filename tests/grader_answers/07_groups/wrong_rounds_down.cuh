// The last rows are in no group.
// EXERCISE-BEGIN 1a
return rows / group_rows;
// EXERCISE-END 1a
