// The product in an int.
// EXERCISE-BEGIN 4
return peer_ptr(rows, to) + static_cast<int>(static_cast<unsigned>(index) * static_cast<unsigned>(row_vectors));
// EXERCISE-END 4
