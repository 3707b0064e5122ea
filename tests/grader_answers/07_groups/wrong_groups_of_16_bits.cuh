// Of 65536 groups and more it counts the rest only.
    // EXERCISE-BEGIN 1a
    // Rounded up.
    return static_cast<uint16_t>((rows + group_rows - 1) / group_rows);
    // EXERCISE-END 1a
