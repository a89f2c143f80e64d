"""`axiomrl report`: runs as text, JSON, CSV, or one HTML page that works offline."""
