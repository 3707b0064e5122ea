// All in order in the program, and in no order for anyone else.
// EXERCISE-BEGIN 2
ProxyCommand copy = command;
copy.number = number + 1;
ring.slots[number % ring.num_slots] = copy;
// EXERCISE-END 2
