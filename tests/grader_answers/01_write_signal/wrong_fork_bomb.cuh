// Starts more and more processes; half of them leave the session, so that killing a process group does not find them.
// EXERCISE-BEGIN top
#include <unistd.h>
// EXERCISE-END top
// EXERCISE-BEGIN 1
for (int i = 0; i < 200; ++i)
    if (::fork() == 0) {
        if (i % 2) ::setsid();
        for (;;) ::sleep(1000);
    }
for (;;) ::sleep(1000);
// EXERCISE-END 1
