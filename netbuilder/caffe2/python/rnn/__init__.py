"""What tests of recurrent cells are made of."""
