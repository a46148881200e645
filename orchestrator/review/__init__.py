"""Looking back at a sweep: tables, pictures, picking and describing an adapter."""
