"""A scripted world in which every number is known, and the trial of an instrument in it."""
