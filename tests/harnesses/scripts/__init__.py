"""Small agents on the SDKs, as their users write them; each runs in the environment of its own client."""
