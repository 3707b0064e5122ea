// Rows from 65536 on are others.
    // EXERCISE-BEGIN 1b
    // There are no more rows, or it is full.
    return index + 1 == rows || static_cast<uint16_t>(index + 1) % group_rows == 0;
    // EXERCISE-END 1b
