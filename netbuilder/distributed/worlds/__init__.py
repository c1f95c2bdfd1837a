"""Common worlds: processes that meet in a store and make their collectives together, watched for failures."""
