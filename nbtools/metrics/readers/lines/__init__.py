"""What one printed line says."""
