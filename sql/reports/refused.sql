-- One row a topic and reason for which records went to the dead letters.
-- Key: topic, reason
with final as (
    select topic, reason, count(*) as records, min(appended_us) as first_us, max(appended_us) as last_us
    from dead_letters
    group by topic, reason
)

select * from final
