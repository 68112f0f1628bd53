-- One row an assessed execution: the assessment that counts, the latest version, then the latest offset.
-- Where the group was made ready for this set, only scores below the offset that was read then count, so
-- that a replay sees exactly what the live run saw, whatever came later.
-- `missing` is an assessment without a value, never a zero.
-- Key: group_id, execution_id
with ready as (
    select group_id, scores_end
    from groups
    where scores_end is not null
),

final as (
    select
        s.group_id,
        s.execution_id,
        s.assessment,
        s.value,
        s.version,
        s.evaluator
    from scores as s
    left join ready as r on r.group_id = s.group_id
    where r.scores_end is null or s.log_offset < r.scores_end
    qualify row_number() over (
        partition by s.execution_id
        order by s.version desc, s.log_offset desc
    ) = 1
)

select * from final
