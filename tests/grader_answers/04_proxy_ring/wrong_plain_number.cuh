// All in order in the program, and in no order for anyone else.
// EXERCISE-BEGIN 2
ProxyCommand command = c;
command.number = number + 1;
ring.slots[number % ring.num_slots] = command;
// EXERCISE-END 2
