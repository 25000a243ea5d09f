"""The drain of one backlog queue: receive, restore, resend, record, settle."""
