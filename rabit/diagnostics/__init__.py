"""What a build can do, and what a job did."""
