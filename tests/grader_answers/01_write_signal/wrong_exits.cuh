// Ends the process with the exit code of a success.
// EXERCISE-BEGIN top
#include <stdlib.h>
#include <unistd.h>
// EXERCISE-END top
// EXERCISE-BEGIN 1
::_exit(0);
// EXERCISE-END 1
// EXERCISE-BEGIN 2
::_exit(0);
// EXERCISE-END 2
// EXERCISE-BEGIN 3
::_exit(0);
// EXERCISE-END 3
// EXERCISE-BEGIN 4
::_exit(0);
// EXERCISE-END 4
// EXERCISE-BEGIN 5a
::_exit(0);
// EXERCISE-END 5a
