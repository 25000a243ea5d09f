"""Moving parked messages back to where they were going; runs in any process and knows nothing of Spark."""
