"""What everything stands on: errors, structs, the flat layout, files, progress. Knows nothing of learning."""
