"""What is fitted to numbers, knowing nothing of logs: ridge, logistic regression, calibration, trees."""
