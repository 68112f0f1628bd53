-- Question: Which records of the log could not be read, and why?
-- One row a topic and reason for which records went to the dead letters.
-- Then: a reason that names a schema asks for an upgrade; the bytes lie in dead_letters.
-- Empty: every record of the log was read.
-- Key: topic, reason
with final as (
    select topic, reason, count(*) as records, min(appended_us) as first_us, max(appended_us) as last_us
    from dead_letters
    group by topic, reason
)

select * from final
